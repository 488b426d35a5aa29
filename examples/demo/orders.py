"""The jobs of the demo's tenants: source files of the standard library of this Python.

"library" submits many files at once. The others submit 20 each later, as in real life: some are urgent, some uploads
are incomplete, one file is not Python.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joex.client.submissions import new_job
from joex.core.job import NewJob

LIBRARY = "library"
ACME, GLOBEX, INITECH = "acme", "globex", "initech"
TENANTS = (LIBRARY, ACME, GLOBEX, INITECH)
EACH = 20
"""Documents of each tenant except the library."""

_URGENT = 5
_HALF_ARRIVED = 3
_SMALLEST = 2048  # bytes: the files of the small tenants take a moment
# Without the library's own tests: some of their files are invalid on purpose, and not every Python has them.
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
_PYTHON_2 = b'import sys\n\nprint "Total: %d" % sum(map(int, sys.argv[1:]))\n'


@dataclass(frozen=True, slots=True)
class Upload:
    """A document of which only the beginning has arrived."""

    path: Path
    content: bytes

    def complete(self) -> None:
        """Let the rest arrive: the complete file atomically replaces the incomplete one."""
        whole = self.path.with_suffix(".whole")
        whole.write_bytes(self.content)
        whole.replace(self.path)


@dataclass(frozen=True, slots=True)
class Orders:
    """The jobs to submit, in the order of submission, and the uploads that are under way."""

    library: list[NewJob]
    others: list[NewJob]
    uploads: dict[str, Upload]  # by the subject of their job


def make_orders(folder: Path, most: int | None) -> Orders:
    """Choose the files of the library (at most ``most``), and 20 for each other tenant; uploads go into ``folder``."""
    folder.mkdir()
    files = _standard_library()
    available = [file for file in files if file.stat().st_size >= _SMALLEST]
    files = files if most is None else _spread(available, most)
    uploads = dict(_half_arrived(folder, available))
    wrong = folder / "invoice.py"
    wrong.write_bytes(_PYTHON_2)
    return Orders(
        library=[_order(LIBRARY, file) for file in files],
        others=[
            *(_order(ACME, file) for file in _spread(available, EACH - _URGENT, 1)),
            *(_order(ACME, file, priority="high") for file in _spread(available, _URGENT, 2)),
            *(_order(GLOBEX, upload.path) for upload in uploads.values()),
            *(_order(GLOBEX, file) for file in _spread(available, EACH - len(uploads), 3)),
            _order(INITECH, wrong),
            *(_order(INITECH, file) for file in _spread(available, EACH - 1, 4)),
        ],
        uploads=uploads,
    )


def _standard_library() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    found = (path for path in root.rglob("*.py") if _LEFT_OUT.isdisjoint(path.relative_to(root).parts))
    return sorted(found)


def _spread(files: Sequence[Path], most: int, offset: int = 0) -> list[Path]:
    """Choose files from everywhere, the same ones in each run."""
    count = min(most, len(files))
    return [files[(number * len(files) // count + offset) % len(files)] for number in range(count)]


def _half_arrived(folder: Path, files: Sequence[Path]) -> Iterator[tuple[str, Upload]]:
    """Begin to upload files; their first halves are not valid Python."""
    found = 0
    for file in _spread(files, 10 * _HALF_ARRIVED, 5):
        upload = Upload(folder / file.name, file.read_bytes())
        half = upload.content[: len(upload.content) // 2]
        if found < _HALF_ARRIVED and not upload.path.exists() and not _is_python(half):
            found += 1
            upload.path.write_bytes(half)
            yield _subject(upload.path), upload


def _is_python(source: bytes) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True


def _order(tenant: str, path: Path, **more: Any) -> NewJob:
    args = {"path": str(path)}
    return new_job(task="documents.count", args=args, group=tenant, subject=_subject(path), submitter="demo", **more)


def _subject(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
