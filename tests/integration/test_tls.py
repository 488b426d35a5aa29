"""TLS with real authorities, on both sides: HTTPS of executors, and PostgreSQL that requires certificates."""

import asyncio
import logging
import shutil
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

import joex
from joex import Client
from joex.errors import ConfigError, DatabaseUnavailable
from joex.event_loop import new_event_loop
from joex.http import slow_callers, tls
from joex.http.caller import OWNER
from joex.http.certificate import Certificate, certificate_of
from joex.http.listening import listen
from joex.http.server import serve
from joex.http.state import CALLER
from joex.store.database import connect
from joex.sync import Client as SyncClient
from tests.support.cluster.pki import Authority
from tests.support.cluster.pki import Certificate as Files
from tests.support.processes_inside import LONG, executor_inside
from tests.support.slow_reader import slowly_connected
from tests.support.tls import tls_in_front_of
from tests.support.waiting import PATIENCE, eventually

SOON = PATIENCE / 2
"""Seconds: longer than any limit that a test sets, and shorter than those that it does not."""
OURS = ("IP:127.0.0.1", "DNS:localhost")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> Files:
    """The files of the server's certificate, as a secret's."""
    made, files = authority.server("first", *OURS), Files(tmp_path / "tls.crt", tmp_path / "tls.key")
    replace(files, made)
    return files


def replace(files: Files, by: Files) -> None:
    """Replace both files, as an issuer of certificates does."""
    for old, new in ((files.key, by.key), (files.certificate, by.certificate)):
        shutil.copy(new, f"{old}.new")
        Path(f"{old}.new").rename(old)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """An application that tells its scheme; but for a body that is declared too large, which it does not read.

    It knows the callers of /known.
    """
    if scope["path"] == "/known":
        scope["state"][CALLER] = OWNER
    is_large = any(name == b"content-length" and int(value) > 1000 for name, value in scope["headers"])
    body = (
        b"too large" if is_large else scope["scheme"].encode() + b" " * (0 if scope["path"] == "/short" else 20_000_000)
    )
    await send({"type": "http.response.start", "status": 413 if is_large else 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


class Application:
    """As FastAPI's, for `serve`."""

    def __init__(self) -> None:
        self.state = type("State", (), {"closing": asyncio.Event()})()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await echo(scope, receive, send)


@asynccontextmanager
async def served(files: Files) -> AsyncIterator[int]:
    """A server with these files, in a loop as executors have it, whose TLS is another one; yields its port."""
    certificate = Certificate(str(files.certificate), str(files.key), "JOEX_HTTP_TLS_CERTIFICATE")
    stop = threading.Event()

    async def serve_until_stopped() -> None:
        serving = asyncio.create_task(serve(Application(), listener, certificate))  # type: ignore[arg-type]
        await asyncio.to_thread(stop.wait)
        serving.cancel()
        await asyncio.wait([serving])

    def run() -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve_until_stopped())

    with listen("127.0.0.1:0") as listener:
        running = asyncio.create_task(asyncio.to_thread(run))
        try:
            yield listener.getsockname()[1]
        finally:
            stop.set()
            await asyncio.wait_for(running, PATIENCE)


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.own.certificate))


async def subject(port: int, context: ssl.SSLContext) -> str:
    """The name in the certificate that a new caller gets."""
    _, writer = await asyncio.open_connection("localhost", port, ssl=context)
    certificate = writer.get_extra_info("peercert")
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return str(dict(part for [part] in certificate["subject"])["commonName"])


async def test_callers_verify_the_certificate_and_get_whole_answers(authority, files):
    async with served(files) as port, httpx.AsyncClient(verify=trusting(authority), timeout=PATIENCE) as caller:
        for _ in range(2):
            answer = await caller.get(f"https://localhost:{port}/")
            assert (len(answer.text), answer.text.strip()) == (20_000_005, "https")
        assert (await caller.post(f"https://localhost:{port}/", content=b"x" * 5_000_000)).text == "too large"


async def test_a_caller_that_trusts_another_authority_or_speaks_no_tls_harms_no_other(authority, files, tmp_path):
    async with served(files) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await subject(port, trusting(Authority(tmp_path / "another")))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with suppress(ConnectionResetError):
            assert b"HTTP" not in await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
        assert await subject(port, trusting(authority)) == "first"


async def test_new_connections_get_a_certificate_that_has_been_replaced(authority, files, caplog):
    caplog.set_level(logging.INFO, "joex")
    async with served(files) as port:
        assert await subject(port, trusting(authority)) == "first"
        second = authority.server("second", *OURS)
        shutil.copy(second.key, files.key)  # for a moment the two don't belong together
        for _ in range(2):
            assert await subject(port, trusting(authority)) == "first"
        shutil.copy(second.certificate, files.certificate)
        assert await subject(port, trusting(authority)) == "second"
        files.key.unlink()
        assert await subject(port, trusting(authority)) == "second"
    told = [record.getMessage() for record in caplog.records if "JOEX_HTTP_TLS_CERTIFICATE" in record.getMessage()]
    assert [line.partition("; ")[2] or line.rpartition(": ")[2] for line in told] == [
        "the certificate that was read before stays in use",
        "the certificate has changed, and was read again",
        "the certificate that was read before stays in use",
    ]


async def test_callers_who_begin_a_handshake_and_stop_keep_no_other_waiting(authority, files, monkeypatch):
    """Each would hold a descriptor of the process, and then a kubelet's probe would fail."""
    monkeypatch.setattr(tls, "MOST_HANDSHAKES", 3)
    monkeypatch.setattr(tls, "MOST_CONNECTIONS", 0)
    monkeypatch.setattr(tls, "HANDSHAKE_WITHIN", 3600.0)
    async with served(files) as port, AsyncExitStack() as stack:
        silent = []
        for _ in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            silent.append(reader)
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(silent[0].read(), PATIENCE) == b""
        assert await subject(port, trusting(authority)) == "first"


async def test_a_caller_that_does_not_end_its_handshake_in_time_is_disconnected(files, monkeypatch):
    monkeypatch.setattr(tls, "HANDSHAKE_WITHIN", 0.2)
    async with served(files) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), SOON) == b""
        writer.close()


async def test_a_caller_that_does_not_read_its_answer_is_disconnected(authority, files, monkeypatch):
    monkeypatch.setattr(slow_callers, "READ_WITHIN", 0.2)
    lost, end = threading.Event(), slow_callers.TimedProtocol.connection_lost

    def connection_lost(self: Any, error: Exception | None) -> None:
        end(self, error)
        lost.set()

    monkeypatch.setattr(slow_callers.TimedProtocol, "connection_lost", connection_lost)
    async with served(files) as port:
        reader, writer = await asyncio.open_connection("localhost", port, ssl=trusting(authority))
        writer.transport.pause_reading()  # type: ignore[attr-defined] # it is a ReadTransport too
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await asyncio.to_thread(lost.wait, SOON)
        writer.transport.abort()  # what the system has taken of the answer stays unread
        with suppress(OSError):
            await reader.read()


async def test_callers_that_read_no_answer_keep_no_other_waiting(authority, files, monkeypatch):
    """Nor do those whose token is valid: they don't count among the calls of all any more."""
    monkeypatch.setattr(slow_callers, "MOST_CONNECTIONS", 3)
    unread: list[slow_callers.TimedProtocol] = []
    pause = slow_callers.TimedProtocol.pause_writing

    def pause_writing(self: slow_callers.TimedProtocol) -> None:
        pause(self)
        unread.append(self)

    def are_paused(many: int) -> bool:
        return len({one for one in unread if one.flow.write_paused}) >= many

    async with served(files) as port, AsyncExitStack() as stack:
        monkeypatch.setattr(slow_callers.TimedProtocol, "pause_writing", pause_writing)
        for nr in range(3):
            slow = await asyncio.open_connection("localhost", port, ssl=trusting(authority))
            stack.callback(lambda streams: streams[1].transport.abort(), slow)
            writer = slow[1]
            writer.transport.pause_reading()  # type: ignore[attr-defined] # it is a ReadTransport too
            writer.write(b"GET /known HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await eventually(partial(are_paused, nr + 1))
        reader, writer = await asyncio.open_connection("localhost", port, ssl=trusting(authority))
        stack.callback(writer.close)
        writer.write(b"GET /short HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await asyncio.wait_for(reader.readline(), PATIENCE) == b"HTTP/1.1 200 OK\r\n"


async def test_the_last_part_of_a_large_answer_is_sent_when_its_caller_has_read_the_others(
    authority, files, monkeypatch
):
    begun, sent, size = threading.Event(), threading.Event(), 500_000

    async def answer(_: Any, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/large":
            await echo(scope, receive, send)
            return
        send = slow_callers.until_read(send)
        headers = [(b"content-length", b"%d" % size), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        begun.set()
        await send({"type": "http.response.body", "body": b" " * size})
        sent.set()

    monkeypatch.setattr(Application, "__call__", answer)
    async with served(files) as port, AsyncExitStack() as stack:
        trusts = trusting(authority)
        reader, writer = await slowly_connected(f"127.0.0.1:{port}", ssl=trusts, server_hostname="localhost")
        stack.callback(writer.transport.abort)
        writer.transport.pause_reading()  # type: ignore[attr-defined] # it is a ReadTransport too
        writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        async with httpx.AsyncClient(base_url=f"https://localhost:{port}", verify=trusts) as other:
            for _ in range(3):  # the server has turned to others by then
                assert (await other.get("/short")).status_code == 200
        assert not sent.is_set()
        writer.transport.resume_reading()  # type: ignore[attr-defined] # likewise
        assert len(await reader.read(-1)) > size
        assert await asyncio.to_thread(sent.wait, PATIENCE)


async def test_a_caller_that_reads_steadily_gets_a_large_answer_whole(authority, files, monkeypatch):
    """It takes longer than the limit, which is for each part."""
    monkeypatch.setattr(slow_callers, "READ_WITHIN", 1.0)
    monkeypatch.setattr(slow_callers, "LEAST_READ", 10_000)
    monkeypatch.setattr(tls, "LEAST_READ", 10_000)
    async with served(files) as port:
        reader, writer = await asyncio.open_connection("localhost", port, ssl=trusting(authority))
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        size = 0
        for _ in range(25):
            size += len(await reader.readexactly(400_000))
            await asyncio.sleep(0.1)  # that is how slow this caller is
        assert size + len(await reader.read()) > 20_000_000
        writer.close()


@pytest.mark.parametrize("header", ["Connection: keep-alive", "Connection: close"])
async def test_a_caller_that_keeps_its_connection_and_reads_no_more_keeps_no_executor_from_its_end(
    authority, files, header, caplog
):
    """So do pools of connections, such as those of requests and httpx: TLS waits for their answer to its last word."""
    context = trusting(authority)

    def call(port: int) -> socket.socket:
        caller = context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost")
        caller.sendall(f"GET /short HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n".encode())
        assert caller.recv(1)
        return caller

    async with served(files) as port:
        caller = await asyncio.to_thread(call, port)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    caller.close()


def test_a_certificate_is_read_again_from_where_it_was_though_a_task_changes_the_folder(
    authority, files, monkeypatch, tmp_path
):
    monkeypatch.chdir(files.certificate.parent)
    certificate = Certificate(files.certificate.name, files.key.name, "JOEX_HTTP_TLS_CERTIFICATE")
    first = certificate.context()
    monkeypatch.chdir("/")
    assert certificate.context() is first
    replace(files, authority.server("second", *OURS))
    assert certificate.context() is not first


def test_files_that_can_not_be_used_are_told_at_the_start(authority, files, tmp_path):
    other = authority.server("other", *OURS)
    (tmp_path / "text.pem").write_text("no certificate")
    for certificate, key, expected in (
        (str(tmp_path / "nowhere.crt"), "", "No such file or directory"),
        (str(tmp_path / "text.pem"), "", "they are no pair in PEM"),
        (str(files.certificate), str(other.key), "they are no pair in PEM"),
        ("", str(files.key), "JOEX_HTTP_TLS_KEY: a key needs the certificate"),
    ):
        with pytest.raises(ConfigError, match=expected) as caught:
            certificate_of(certificate, key, "JOEX_")
        assert str(caught.value).startswith("JOEX_HTTP_TLS_")
    assert certificate_of("", "", "JOEX_") is None
    both = tmp_path / "both.pem"
    both.write_text(files.certificate.read_text() + files.key.read_text())
    assert certificate_of(str(both), "", "JOEX_") is not None


def url_of(port: int, name: str, ca: Authority, client: Files | None = None) -> str:
    """The URL of a database whose server must prove that it is localhost."""
    parameters = f"sslmode=verify-full&sslrootcert={ca.own.certificate}"
    if client is not None:
        parameters += f"&sslcert={client.certificate}&sslkey={client.key}"
    return f"postgresql://postgres@localhost:{port}/{name}?{parameters}"


async def test_all_parts_of_joex_use_a_database_that_demands_certificates(postgres, database_name, authority):
    app = joex.App()

    @app.task("secured")
    async def secured(ctx: joex.Context) -> None:
        ctx.log.info("a line")
        async with ctx.transaction() as transaction:
            await transaction.execute("SELECT 1")

    server, client = authority.server("postgresql", *OURS), authority.client("postgres")
    async with tls_in_front_of(postgres, server, clients=authority) as port:
        url = url_of(port, database_name, authority, client)
        async with executor_inside(app, url, lease=LONG):
            assert await asyncio.to_thread(_run_one, url) == "success"
        async with Client(url) as in_a_loop:
            assert await in_a_loop.cancel(UUID(int=1)) == "not_found"


def _run_one(url: str) -> str:
    with SyncClient(url) as client:
        job = client.wait(client.submit("secured"), timeout=PATIENCE)
        return "unknown" if job is None else job.state


@pytest.mark.parametrize(
    ("authority_is_ours", "certificate", "expected"),
    [
        (False, "ours", "certificate verify failed"),
        (True, "expired", "certificate has expired|certificate verify failed"),
        (True, "elsewhere", "localhost"),
    ],
    ids=["another authority", "an expired certificate", "the certificate of another host"],
)
async def test_what_can_not_be_verified_is_refused_and_told(  # noqa: PLR0917 - fixtures and cases
    postgres, database_name, authority, tmp_path, authority_is_ours, certificate, expected
):
    presented = {
        "ours": lambda: authority.server("postgresql", *OURS),
        "expired": lambda: authority.expired("expired", *OURS),
        "elsewhere": lambda: authority.server("elsewhere", "DNS:elsewhere.invalid"),
    }[certificate]()
    trusted = authority if authority_is_ours else Authority(tmp_path / "another")
    async with tls_in_front_of(postgres, presented) as port:
        url = url_of(port, database_name, trusted)
        with pytest.raises(DatabaseUnavailable, match=expected):
            await connect(url)
        with pytest.raises(DatabaseUnavailable, match=expected):
            await asyncio.to_thread(_run_one, url)
