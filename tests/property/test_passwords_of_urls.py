"""No message about a database URL has a part of its password, whatever is wrong with the URL."""

import asyncio
import base64
import os
import tempfile
import traceback
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, patch
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joex import Client
from joex.config import load_settings
from joex.core.url import check_database_url
from joex_operator.cluster.secrets import Secrets
from joex_operator.control.database import database_problem
from joex_operator.control.fleet import UrlUnknown
from joex_operator.local.command import _urls
from joex_operator.metrics import database_name

# No lower-case letters, of which the rest of the URLs and the messages are made.
PASSWORDS = st.text(
    st.sampled_from("/@#?%&=+:;,.[]{}<>|\\^ \"'~`$!*()-_\t\nXQZJK0123456789é℀字"), min_size=4, max_size=20
)
URLS = [
    "postgresql://joe:{}@localhost:1/shop",
    "postgresql://joe:{}@localhost:1,localhost:2/shop",
    "postgresql://joe:{}@localhost:1",
    "postgresql://joe:{}@localhost:port/shop",
    "postgresql://joe:{}@localhost:99999/shop",
    "postgresql://joe:{}@",
    "postgresql://joe:{}@[::1/shop",
    "postgresql://joe:{}@a..b:1/shop",
    "postgresql://joe:{}@localhost:1/shop?target_session_attrs=wrong",
    "postgresql://joe:{}@localhost:1/shop?sslmode=wrong",
    "postgresql://joe:{}@localhost:1/shop?sslmode",
    "postgresql://joe:{}@localhost:1/shop?port=wrong",
    "postgresql://joe:{}@/shop?port=wrong&host=localhost",
    "postgresql://joe:{}@/shop?host=localhost,&port=1",
    "postgresql://joe:{}@localhost:1/shop#fragment",
    "postgresql://:{}@localhost:1/shop",
    "postgresql:/joe:{}@localhost:1/shop",
    "mysql://joe:{}@localhost:1/shop",
    "joe:{}@localhost:1/shop",
    "postgresql://localhost:1/shop?user=joe&password={}",
    "postgresql://localhost:1/shop?password={}&target_session_attrs=wrong",
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to work in, and an environment without settings."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("JOEX_", "PG")):
            monkeypatch.delenv(name)


def said(url: str) -> str:
    """All messages of the ways in which a URL comes to Joex."""
    lines = []
    for use in (check_database_url, flag, variable, file, client, up, operator):
        try:
            lines.append(str(use(url)))
        except Exception as error:  # noqa: BLE001 - each one's messages are looked at
            lines.append("".join(traceback.format_exception(error, limit=0)))
            lines += [text for one in chain(error) for text in (str(one), repr(one))]
    return "\n".join(lines)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                yield from chain(one)
        if error.__cause__ is not None:
            yield from chain(error.__cause__)
        error = error.__context__


def flag(url: str) -> object:
    return load_settings({"database_url": url})


def variable(url: str) -> object:
    with patch.dict(os.environ, JOEX_DATABASE_URL=url):
        return load_settings()


def file(url: str) -> object:
    with tempfile.NamedTemporaryFile("w", newline="") as made:
        made.write(url)
        made.flush()
        return load_settings({"database_url_file": made.name})


def client(url: str) -> str:
    async def main() -> str:
        async with Client(url) as client, client.acquire():
            return "connected"

    try:
        return asyncio.run(main())
    except Exception as error:
        said = database_problem(error).message  # the condition, and the Event, of a pool
        raise ValueError(said) from error


def up(url: str) -> object:
    _urls([url])
    return database_name(_urls([f"shop={url}"])["shop"])


def operator(url: str) -> str:
    api: Any = SimpleNamespace(get=AsyncMock(return_value={"data": {"url": base64.b64encode(url.encode())}}))
    ref = SimpleNamespace(secret_name="shop", secret_key="url")
    pool: Any = SimpleNamespace(namespace="default", spec=SimpleNamespace(database=ref))
    try:
        return database_name(asyncio.run(Secrets(api).database_url(pool)))
    except UrlUnknown as error:
        raise ValueError(f"{error.problem.reason}: {error}") from error


def pieces(text: str) -> set[str]:
    return {text[i : i + 4] for i in range(len(text) - 3)}


@lru_cache
def always_said(form: str) -> str:
    """What the messages say about a URL of this form whose passwords are other ones."""
    return "".join(said(form.format(other)) for other in ("pw", "p@w", "p[w", "p=w"))


@given(st.sampled_from(URLS), PASSWORDS, st.sampled_from(["raw", "encoded"]))
@example(URLS[0], "12345/X", "raw")
@example(URLS[0], "12345#X", "raw")
@example(URLS[0], "12345?X=Q", "raw")
@example(URLS[0], "X@12345", "raw")
@example(URLS[0], "X@QZJK/Q", "raw")
@example(URLS[0], "[12345]", "raw")
@example(URLS[0], "QZJK℀", "raw")
@example(URLS[18], "QZJK://", "raw")
@example(URLS[20], "X&target_session_attrs=QZJK", "raw")
@example(URLS[5], "X=QZJK", "raw")
def test_no_message_has_a_piece_of_the_password(form: str, password: str, written: str) -> None:
    written = quote(password, safe="") if written == "encoded" else password
    found = said(form.format(written))
    ours = pieces(password) | pieces(written)
    assert not {piece for piece in ours if piece in found and piece not in always_said(form)}
