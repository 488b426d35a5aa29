"""Write the CRDs, as made from the operator's models, into crds/ and into the chart, which reads its own files alone.

With --check: fail where a file is not as made.
"""  # noqa: INP001 - not a package

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from joex_operator.api.crd import periodic_crd, pool_crd

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (ROOT / "crds", ROOT / "charts" / "joex" / "files" / "crds")
HEADER = "# Made by scripts/generate_crds.py from operator/joex_operator/api/spec.py: change that, and run this.\n"


class _Dumper(yaml.SafeDumper):
    """Writes shared parts out in full: an alias in a manifest helps no reader."""

    def ignore_aliases(self, data: Any) -> bool:
        """Never refer to an earlier part."""
        del data
        return True


def files() -> dict[Path, str]:
    """The files, and what is to be in them."""
    texts = {f"{crd['metadata']['name']}.yaml": _text(crd) for crd in (pool_crd(), periodic_crd())}
    return {folder / name: text for folder in FOLDERS for name, text in texts.items()}


def _text(crd: dict[str, Any]) -> str:
    return HEADER + yaml.dump(crd, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def main(arguments: list[str]) -> int:
    """Write the files, or compare them. Returns the exit code."""
    wanted = files()
    if arguments == ["--check"]:
        stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text("utf-8") != text]
        for path in stale:
            sys.stderr.write(
                f"{path.relative_to(ROOT)} is not as made from the models: run python scripts/generate_crds.py\n"
            )
        return 1 if stale else 0
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
