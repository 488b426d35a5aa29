"""The command ``joex up``: the pools of a file, as processes of this machine.

It imports what is slow to import when it runs, because ``joex --help`` imports this module.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joex.cli.database import database
from joex.cli.options import DatabaseUrl
from joex.config import load_settings, read_secret
from joex.core.url import check_database_url
from joex.errors import ConfigError

if TYPE_CHECKING:
    from joex_operator.local.files import Documents

_NAME = "[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"


def up(
    *,
    files: Annotated[
        list[Path], typer.Option("--file", "-f", metavar="FILE", help="YAML file with JoexPools and PeriodicTasks.")
    ],
    databases: Annotated[
        list[str] | None,
        typer.Option(
            "--database",
            metavar="SECRET=URL",
            help="URL of the database whose secretName is SECRET. Other users see it in the process list.",
        ),
    ] = None,
    database_files: Annotated[
        list[str] | None,
        typer.Option("--database-file", metavar="SECRET=FILE", help="The same with the URL in a file."),
    ] = None,
    database_url: DatabaseUrl = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of this joex up among those that share a database. Default: the host's name."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each event and log line.")] = False,
) -> None:
    """Run pools of executors on this machine without a cluster. They grow and shrink with the demand.

    The files have the format of a cluster's manifests. SIGHUP reads them again.
    At SIGTERM or Ctrl-C all executors finish their jobs and leave. At a second one they give their jobs back at once.
    """
    if sys.platform == "win32":
        raise ConfigError("joex up does not run on Windows: start executors there yourself (joex executor)")
    from joex.observe.log_lines import capture_logging  # noqa: PLC0415
    from joex_operator.local.files import read_files  # noqa: PLC0415
    from joex_operator.local.lock import only_one  # noqa: PLC0415
    from joex_operator.local.operator import LocalOperator  # noqa: PLC0415
    from joex_operator.local.output import ConsoleOutput, JsonOutput  # noqa: PLC0415

    output = JsonOutput() if as_json else ConsoleOutput()
    settings = load_settings({"database_url": database_url, "log_format": output.log_format})
    namespace, urls = _namespace(name), _urls(databases or [], database_files or [])
    documents = read_files(files, namespace)

    async def run(default_url: str | None) -> None:
        operator = LocalOperator(
            namespace,
            documents,
            lambda: read_files(files, namespace),
            urls=urls,
            default_url=default_url,
            output=output,
        )
        await operator.run()

    with only_one(namespace, f"with {', '.join(map(str, files))}"), _default(settings.url, documents, urls) as url:
        capture_logging(settings)
        asyncio.run(run(url))


def _namespace(name: str | None) -> str:
    given = name if name is not None else socket.gethostname() or "localhost"
    if re.fullmatch(_NAME, given) is None:
        raise ConfigError(f"--name: expected letters, digits, '.', '_' and '-', at most 63; got {given!r}")
    return given


def _urls(databases: Sequence[str], files: Sequence[str] = ()) -> dict[str, str]:
    urls: dict[str, str] = {}
    for flag, kind, given in [("--database", "URL", one) for one in databases] + [
        ("--database-file", "FILE", one) for one in files
    ]:
        secret, equals, value = given.partition("=")
        if not (secret and equals) or set(":/@") & set(secret):  # (a URL may have a = too: don't show it)
            raise ConfigError(f"{flag}: expected SECRET={kind}, where SECRET is the secretName of a pool")
        where = f"{flag} {secret}"
        if secret in urls:
            raise ConfigError(f"{where}: this database is given twice")
        url = read_secret(where, value) if kind == "FILE" else value
        try:
            check_database_url(url)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from error
        urls[secret] = url
    return urls


@contextmanager
def _default(configured: str | None, documents: Documents, urls: Mapping[str, str]) -> Iterator[str | None]:
    """The URL of all databases that have none in ``urls``. The embedded server starts only if a pool needs it."""
    from joex_operator.api.spec import JoexPoolSpec  # noqa: PLC0415

    specs = [document.spec for document in documents.values()]
    secrets = {spec.database.secret_name for spec in specs if isinstance(spec, JoexPoolSpec)}
    if unused := sorted(urls.keys() - secrets):
        there = ", ".join(sorted(secrets)) or "none"
        raise ConfigError(f"--database {unused[0]}: no pool has this secretName; the files have: {there}")
    if configured is None and secrets <= urls.keys():
        yield None
        return
    with database(configured) as url:
        yield url
