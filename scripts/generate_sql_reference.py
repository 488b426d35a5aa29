"""Write the page of the functions and views of the schema `joex`, as made from the comments in the SQL.

With --check: fail where the page is not as made. (tests/integration/test_sql_reference.py holds it to the catalogue.)
"""  # noqa: INP001 - not a package

from __future__ import annotations

import re
import sys
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "sql.md"
SOURCE = ROOT / "executor" / "joex" / "store" / "sql"
SECTIONS = {
    "Submit": "20_submit",
    "Steer": "50_steer",
    "Report from a run, and read its log": "40_run",
    "Wait, and listen to events": "80_subscribe",
    "Observe": "70_views",
    "Explain": "75_why",
    "Periodic tasks": "85_periodic",
    "Limits": "10_common",
}
HEADER = """\
<!-- Made by scripts/generate_sql_reference.py of the comments in executor/joex/store/sql: change these, and run it. -->
# SQL

The schema `joex` has the functions and views on this page, and nothing else. They are stable: a later version may add
functions, views, and columns at the end of a view, and changes and removes none. The tables and all other objects are
in the schema `joex_private`, and may change with each version: do not use them in your programs.

A function works in your transaction, with the rights of the calling role. Name its parameters:
`joex.submit('mail.send', grp => 'acme')`. Joex adds two errors to those of PostgreSQL: SQLSTATE `JX002`, the function
needs a READ COMMITTED transaction; and `JX003`, arguments or a result are too large.
"""

_COMMENTED = re.compile(r"((?:^--.*\n)+)^CREATE OR REPLACE (FUNCTION|VIEW) joex\.(\w+)", re.MULTILINE)
_COLUMN = re.compile(r"(\w+),? +-- ([^:\n]+)(?:: (.*))?$")
_NAME = re.compile(r"(?<![`\w])(joex\.\w+(?:\(.*?\))?)(?![`\w])")


def page() -> str:
    """What is to be on the page."""
    sections = [_section(title, (SOURCE / f"{name}.sql").read_text("utf-8")) for title, name in SECTIONS.items()]
    return "\n".join([HEADER, *sections])


def _section(title: str, sql: str) -> str:
    entries = [_entry(match, sql[match.end() :]) for match in _COMMENTED.finditer(sql)]
    return f"## {title}\n\n" + "\n".join(entries)


def _entry(match: re.Match[str], rest: str) -> str:
    comment, kind, name = match.groups()
    text = _text(comment)
    if kind == "VIEW":
        return f"### joex.{name}\n\n{text}\n\n{_columns(rest)}"
    return f"### joex.{name}\n\n```sql\n{_signature(name, rest)}\n```\n\n{text}\n"


def _text(comment: str) -> str:
    """The comment in Markdown: lines that are indented are items of a list."""
    paragraphs: list[str] = []
    for line in comment.splitlines():
        said = line.removeprefix("--").removeprefix(" ")
        if re.match(r"  \S", said):
            paragraphs.append(re.sub(r"^  ([a-z_]+)", r"- `\1`", said))
        elif paragraphs and (said.startswith(" ") or not paragraphs[-1].startswith("- ")):
            paragraphs[-1] += f" {said.strip()}"
        else:
            paragraphs.append(said)
    joined = "\n".join(paragraphs).replace("\n- ", "\n\n- ", 1)
    return _NAME.sub(r"`\1`", re.sub(r"(\n- .*)\n(?!- )", r"\1\n\n", joined))


def _signature(name: str, rest: str) -> str:
    """The declaration of a function, up to what describes its working."""
    end = re.search(r"\s+LANGUAGE ", rest)
    if end is None:
        raise ValueError(f"joex.{name} has no language")
    return f"joex.{name}{dedent(rest[: end.start()])}"


def _columns(rest: str) -> str:
    """The columns of a view: each line that ends with the name of one has its type and meaning in a comment."""
    lines = rest.partition("\nFROM ")[0].splitlines()
    rows = [" | ".join(found.groups("")) for line in lines if (found := _COLUMN.search(line))]
    return "\n".join(["| column | type | |", "|---|---|---|", *(_NAME.sub(r"`\1`", f"| {row} |") for row in rows), ""])


def main(arguments: list[str]) -> int:
    """Write the page, or compare it. Returns the exit code."""
    wanted = page()
    if arguments == ["--check"]:
        if PAGE.is_file() and PAGE.read_text("utf-8") == wanted:
            return 0
        sys.stderr.write(
            f"{PAGE.relative_to(ROOT)} is not as made from the SQL: run python scripts/generate_sql_reference.py\n"
        )
        return 1
    PAGE.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
