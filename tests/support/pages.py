"""The pages of the documentation as programs: the files that a reader writes, the commands, and their output.

A fenced block is classified by its language, the word behind it, and its first line:

``console``: commands behind ``$``, each followed by its output, if the page shows it. ``console cluster``: the same on
a cluster; tests/node runs them. ``console foreign``, ``python foreign``: of another library, for comparison.
``python``, ``yaml``, ``dockerfile``, ``toml`` whose first line is ``# NAME``: a file of this name. A ``python`` block
without a name continues the file before it; a ``yaml`` block without one is a JoexPool or a PeriodicTask. ``python
session``: the body of an async function that has a client, and ids of jobs. ``sql``: statements for the database of
Joex. ``sql superuser``: statements that change the server; tests/integration/test_access.py runs them. Anything else
in these languages is an error, so that no example goes untested.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^( *)```(\w[^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"# ([\w./-]+)\n")
_TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXAMPLES = frozenset({"console", "python", "sql", "yaml", "dockerfile", "toml", "sh", "bash", "shell", "py", "yml"})


class UnclassifiedError(Exception):
    """No test would run a block; the message has its place."""


@dataclass(frozen=True)
class File:
    """A file that the reader writes."""

    name: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command that the reader enters, and its output on the page; None: the page shows none."""

    text: str
    shown: str | None
    on_cluster: bool = False


@dataclass(frozen=True)
class Manifest:
    """A JoexPool or a PeriodicTask that the page shows, without the reader writing it to a file."""

    text: str


@dataclass(frozen=True)
class Statements:
    """SQL for the database of Joex."""

    text: str


@dataclass(frozen=True)
class Session:
    """The body of an async function that has ``url``, ``client``, and the ids ``job_id``, ``ids``, ``a`` and ``b``."""

    text: str


@dataclass(frozen=True)
class Foreign:
    """An example for another library, or statements that another test runs."""

    language: str
    text: str


Step = File | Command | Manifest | Statements | Session | Foreign


def pages(folder: str) -> list[Path]:
    """The pages of a folder of docs/, in the order of its table of contents if that names them."""
    index = DOCS / folder / "index.md"
    named = [line for toctree in _TOCTREE.findall(index.read_text()) for line in toctree.split() if line[0] != ":"]
    found = [DOCS / folder / f"{name}.md" for name in named if "*" not in name]
    return found + sorted(set((DOCS / folder).glob("*.md")) - {index, *found})


def steps(page: Path) -> list[Step]:
    """The steps of a reader, from the beginning of a page to its end.

    Raises:
        UnclassifiedError: it has a block that can't be classified.
    """
    found: list[Step] = []
    text = page.read_text()
    for fence in _FENCE.finditer(text):
        language, _, kind = fence[2].strip().partition(" ")
        if language not in _EXAMPLES:
            continue
        block = textwrap.dedent(fence[3])
        asked = _step(language, kind, block, found)
        if not asked:
            line = text.count("\n", 0, fence.start()) + 1
            raise UnclassifiedError(f"{page}:{line}: no test would run this {fence[2].strip()} block")
        found += asked
    return found


def files(page: Path) -> dict[str, str]:
    """The files of a page, as they are at its end."""
    return {step.name: step.text for step in steps(page) if isinstance(step, File)}


def console(page: Path) -> list[Command]:
    """The commands of all console blocks of any page."""
    fences = [fence for fence in _FENCE.finditer(page.read_text()) if fence[2].split()[0] == "console"]
    return [command for fence in fences for command in commands(textwrap.dedent(fence[3]))]


def _step(language: str, kind: str, block: str, before: Sequence[Step]) -> Sequence[Step]:
    """The step of a block; None: it can't be classified."""
    match language, kind:
        case (("console" | "python"), "foreign") | ("sql", "superuser"):
            return [Foreign(language, block)]
        case "console", ("" | "cluster"):
            return list(commands(block, on_cluster=bool(kind)))
        case "python", "session":
            return [Session(block)]
        case "sql", "":
            return [Statements(block)]
        case (("python" | "yaml" | "dockerfile" | "toml"), ""):
            return _written(language, block, before)
    return []


def _written(language: str, block: str, before: Sequence[Step]) -> Sequence[Step]:
    name = _NAME.match(block)
    programs = [step for step in before if isinstance(step, File) and step.name.endswith(".py")]
    if name:
        return [File(name[1], block)]
    if language == "python" and programs:
        return [File(programs[-1].name, f"{programs[-1].text}\n\n{block}")]
    if language == "yaml" and all(map(_is_ours, yaml.safe_load_all(block))):
        return [Manifest(block)]
    return []


def _is_ours(document: object) -> bool:
    return isinstance(document, dict) and str(document.get("apiVersion")).startswith("joex.dev/")


def commands(block: str, *, on_cluster: bool = False) -> Iterator[Command]:
    """The commands of a console block."""
    if not block.startswith("$ "):
        return
    text, shown = "", ""
    for line in block.splitlines(keepends=True):
        if line.startswith("$ "):
            if text:
                yield Command(text, shown or None, on_cluster)
            text, shown = line.removeprefix("$ "), ""
        elif text.endswith("\\\n"):
            text += line
        else:
            shown += line
    yield Command(text, shown or None, on_cluster)


# ---- the output of a command, compared with the page

_VARYING = (
    (
        re.compile(
            r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{4,8}(-[0-9a-f]{4})?\.\.\.|\b[0-9a-f]{32}\b"
        ),
        "ID",
    ),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00| UTC)?"), "TIME"),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "TIME"),
    (re.compile(r"(?<![\w.])(\d+(\.\d+)?(ms|s|m|h|d))+\b"), "LONG"),
    (re.compile(r"[ \t]+"), " "),
)
_EMBEDDED = re.compile(r"^joex: no database URL is given: .*\n", re.MULTILINE)
_PROGRESS = re.compile(r"^joex: .* jobs have arrived\n", re.MULTILINE)


def is_as_shown(printed: str, shown: str) -> bool:
    """Whether the output is that of the page, except ids, times, durations and the width of columns.

    ``...`` matches any text within a line, and any lines if a line has nothing else. The page may omit the line that
    names the embedded server, and those with which a long simulation shows its progress.
    """
    printed = _PROGRESS.sub("", printed)
    if not _EMBEDDED.search(shown):
        printed = _EMBEDDED.sub("", printed)
    pattern = re.compile("".join(_pattern(line) for line in _plain(shown)))
    lines = _plain(printed)
    # kubectl exec forwards stdout and stderr in any order, so notes on stderr may also come first.
    notes = [line for line in lines if line.startswith("joex: ")]
    last = [*(line for line in lines if line not in notes), *notes]
    return any(pattern.fullmatch("".join(f"{line}\n" for line in order)) for order in (lines, last))


def _plain(text: str) -> list[str]:
    for varying, stand_in in _VARYING:
        text = varying.sub(stand_in, text)
    return [line.strip() for line in text.strip("\n").splitlines()]


def _pattern(line: str) -> str:
    if line == "...":
        return r"(?:[^\n]*\n)*?"
    return re.escape(line).replace(r"\.\.\.", r"[^\n]*?") + "\n"
