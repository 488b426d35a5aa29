"""``joex version``."""

from __future__ import annotations

from joex import __version__
from joex.cli.options import AsJson
from joex.cli.output import print_json, say


def version(*, as_json: AsJson = False) -> None:
    """Print the version of Joex."""
    if as_json:
        print_json({"version": __version__})
    else:
        say(f"joex {__version__}")
