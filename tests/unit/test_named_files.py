"""The files that a database URL names, which the driver reads on the event loop."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from joex.errors import ConfigError
from joex.store.connector import Connector

ENDLESS = "/proc/self/pagemap"
"""A regular file of this process, as its metadata say, with a size of 0 and half a terabyte of zeros."""
TLS = ["sslrootcert", "sslcert", "sslkey", "sslcrl"]


@pytest.fixture
def away() -> Iterator[str]:
    """The URL of a server that refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"postgresql://joex@127.0.0.1:{bound.getsockname()[1]}/joex?sslmode=verify-full"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that the driver opens by Python's means; they fail to open, because it might read one for ever."""
    paths: list[str] = []

    def refuse(path: Path, *_: Any, **__: Any) -> None:
        paths.append(str(path))
        raise OSError

    monkeypatch.setattr(Path, "open", refuse)
    return paths


@pytest.fixture
def honest(tmp_path: Path) -> Path:
    path = tmp_path / "honest"
    path.write_text("*:*:*:*:secret\n")
    path.chmod(0o600)
    return path


def connector(url: str) -> Connector:
    return Connector(url, "joex", None, {}, pooled=False)


async def use(made: Connector) -> None:
    with pytest.raises(OSError, match="refused"):
        await made()


def refusal(parameter: str) -> str:
    return f"^database URL: {parameter}: expected a file of at most 16 MB, and no pipe or device$"


@pytest.mark.parametrize("parameter", TLS)
async def test_a_url_that_names_a_file_without_an_end_does_not_stop_the_event_loop(away: str, parameter: str) -> None:
    """One without a size is not read. (It may have content later, so that is no error of the URL.)"""
    with pytest.raises(OSError, match=f": {parameter}: the file is empty$"):
        await connector(f"{away}&{parameter}={ENDLESS}")()


@pytest.mark.parametrize("parameter", [*TLS, "passfile"])
def test_nor_does_one_that_names_a_file_of_any_size(away: str, tmp_path: Path, parameter: str) -> None:
    with (tmp_path / "large").open("wb") as large:
        large.truncate(16 * 2**20 + 1)
    with pytest.raises(ConfigError, match=refusal(parameter)):
        connector(f"{away}&{parameter}={tmp_path / 'large'}")


async def test_a_passfile_without_a_size_has_no_entries_and_is_not_read(
    away: str, honest: Path, opened: list[str]
) -> None:
    """It may be empty, which PostgreSQL's own clients allow, or endless."""
    away = away.replace("verify-full", "disable")
    await use(connector(f"{away}&passfile={ENDLESS}"))
    assert opened == []
    await use(connector(f"{away}&passfile={honest}"))
    assert opened == [str(honest)]


@pytest.mark.parametrize("parameter", [*TLS, "passfile"])
async def test_a_file_that_comes_later_is_checked_too(
    away: str, tmp_path: Path, opened: list[str], parameter: str
) -> None:
    """Such as that of a thread of the operator, which its URL had named before it began."""
    late = tmp_path / "late"
    made = connector(f"{away}&{parameter}={late}")
    late.symlink_to("/proc/self")
    with pytest.raises(ConfigError, match=refusal(parameter)):
        await made()
    assert opened == []
