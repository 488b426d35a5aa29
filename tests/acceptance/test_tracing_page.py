"""The programs of docs/how-to/tracing.md: what they trace, log and report to Sentry."""

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import started
from tests.support.pages import DOCS, files
from tests.support.waiting import PATIENCE, eventually

PAGE = DOCS / "how-to" / "tracing.md"


class Sentry:
    """A server that takes the events of Sentry's SDK."""

    def __init__(self, url: str) -> None:
        self.dsn = url.replace("//", "//key@") + "/1"
        self.events: list[dict[str, Any]] = []

    def take(self, envelope: bytes) -> None:
        """Keep the events of an envelope: after its headers, each item has a line with its type, and one of its own."""
        lines = envelope.split(b"\n")
        for header, item in zip(lines[1::2], lines[2::2], strict=False):
            if json.loads(header).get("type") == "event":
                self.events.append(json.loads(item))


@pytest.fixture
def sentry() -> Iterator[Sentry]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.take(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Sentry(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


async def test_a_request_can_be_followed_through_spans_log_lines_and_errors(
    tmp_path: Path, database_url: str, sentry: Sentry
) -> None:
    for name, text in files(PAGE).items():
        (tmp_path / name).write_text(text)
    command = "joex executor --app shop:app"
    async with started(command, tmp_path, database_url, SENTRY_DSN=sentry.dsn, JOEX_LOG_FORMAT="json") as (_, log):
        await eventually(lambda: "registered" in log(), why="the executor takes jobs")
        async with started("order", tmp_path, database_url) as (process, printed):
            assert await asyncio.wait_for(process.wait(), PATIENCE) == 0, printed()
            [submit, order] = printed().splitlines()
        trace_id = order.partition(" ")[0]
        assert submit == f"{trace_id} submit mail.send"

        def spans() -> list[str]:
            return [line.partition(" ")[2] for line in log().splitlines() if line.startswith(trace_id)]

        await eventually(lambda: len(spans()) == 6, why="the executor has told all spans")
        assert sorted(spans()) == sorted(["smtp", "finish mail.send", "run mail.send"] * 2)
        assert sum(line.endswith(" take default") for line in log().splitlines()) == 2
        await eventually(lambda: sentry.events, why="Sentry has the exception")
        told = log()
    lines = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    said = [line for line in lines if line["event"] == "sending to ann@example.org"]
    assert [(line["task"], line["group"], line["attempt"]) for line in said] == [
        ("mail.send", "default", 1),
        ("mail.send", "default", 2),
    ]
    assert "Traceback" not in told, "the job's log has it"
    [event] = sentry.events
    assert event["logger"] == "joex.run"
    assert event["exception"]["values"][-1]["type"] == "ConnectionError"
    assert "send" in [frame["function"] for frame in event["exception"]["values"][-1]["stacktrace"]["frames"]]
    extra = event["extra"]
    assert (extra["job"], extra["task"], extra["group"]) == (said[0]["job"], "mail.send", "default")
    assert extra["attempt"] == 1
