"""Limits of connections: their number, and how slowly a caller may send a request or read its answer.

By itself uvicorn's protocol limits only how long a connection is idle between two requests.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import h11
from h11._readers import ChunkedReader
from h11._state import MIGHT_SWITCH_PROTOCOL
from starlette.types import Message, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from joex.http.listening import READ_WITHIN
from joex.http.peer import Peer
from joex.http.state import CALLER, PEER

HEAD_WITHIN = 10.0
"""Seconds from the connection, or from the first byte of a further request, to the end of its headers."""

BODY_WITHIN = 60.0
"""Seconds from the end of the headers to the end of the body."""

LEAST_READ = 1_000_000
"""Bytes of a large answer that a caller must read in `READ_WITHIN`."""

PARTS_WITHIN = 1.0
"""Seconds in which the rest of a body that nobody reads is dropped, so that its caller gets the answer and no reset."""

MOST_DROPPED = 20_000_000
"""Bytes of such a rest: beyond, the connection is closed earlier."""

LEAST_CHUNK = 100
"""Mean bytes of the chunks of a body, besides `SMALL_CHUNKS` ones of any size: each takes time of the event loop."""

SMALL_CHUNKS = 1000

MOST_BESIDE = 20
"""Mean bytes of so many chunks beside their data: the size of each, and the extensions that may follow it."""

MOST_HEADERS = 100
"""Headers of a request, and of those after its chunks: thousands of empty ones take the event loop as long as thirty
probes, beside all tokens."""

MOST_AHEAD = 10_000
"""Bytes of further requests that are kept while one is being answered. Reading goes on, to notice when its caller hangs
up: what comes beyond is dropped, and the connection ends after this answer."""

MOST_CONNECTIONS = 800
"""Open connections. Beyond, each new one ends the one that has been idle for longest, or else of those whose bodies are
on the way the one that began first.

At most `joex.http.route.MOST_REQUESTS`, and `MOST_UNJUDGED` for a moment, are neither: the others are left for probes,
which come on new connections.
"""


def until_read(send: Send) -> Send:
    """Send an answer; its last part returns when its caller has read it, or is disconnected.

    (The server waits for the reader before the next part alone, and an answer is in memory until it is read.)
    """

    async def send_and_wait(message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            await send({**message, "more_body": True})
            message = {"type": "http.response.body"}
        await send(message)

    return send_and_wait


class TimedProtocol(H11Protocol):
    """uvicorn's protocol, with these limits."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn = _Requests(h11.SERVER)
        self._sends: type | None = None  # the part of a request that the limit is for
        self._limit: asyncio.TimerHandle | None = None
        self._unread = 0  # bytes of the answer, when the limit of the reader began
        self._read_limit: asyncio.TimerHandle | None = None
        self._dropped = 0  # bytes that came when the connection was parting, or its caller far ahead
        self._is_far_ahead = False
        self.idle_since = self.loop.time()
        self.has_ended = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Start the limit of the first request; end another connection if there are too many."""
        super().connection_made(cast("asyncio.Transport", _Transport(transport, self.conn)))
        self.app_state = {**self.app_state, PEER: Peer(transport)}  # each request gets a copy of it
        transport.set_write_buffer_limits(high=1)  # so that pause_writing says when there is something to read
        self._judge()
        if len(self.connections) <= MOST_CONNECTIONS:
            return
        open_ones = [one for one in self.connections if isinstance(one, TimedProtocol) and not one.has_ended]
        if len(open_ones) > MOST_CONNECTIONS:
            idle = [one for one in open_ones if one.is_idle() and one is not self]
            coming = [one for one in open_ones if one.conn.their_state is h11.SEND_BODY]
            min(idle or coming or [self], key=lambda one: one.idle_since).end()

    def data_received(self, data: bytes) -> None:
        """Go on, or change, or end the limit. A connection that will end after this answer drops what comes."""
        if self.transport.is_closing() or self._is_far_ahead:
            self._dropped += len(data)
            if self._dropped > MOST_DROPPED:
                self._transport.finish()
            return
        was_answering = self.conn.our_state is not h11.IDLE
        super().data_received(data)
        if not was_answering and self.conn.our_state is not h11.IDLE:  # a head is here: half of it changes nothing
            self.idle_since = self.loop.time()
        if self.conn.their_state in (h11.DONE, MIGHT_SWITCH_PROTOCOL):
            if len(self.conn.trailing_data[0]) > MOST_AHEAD:
                self._is_far_ahead, self.cycle.keep_alive = True, False
            self.flow.resume_reading()
        self._judge()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the limits."""
        self._restart(None, 0)
        self._stop_read_limit()
        self._transport.finish()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the limit of the reader: a part of the answer waits for it."""
        super().pause_writing()
        self.idle_since = self.loop.time()
        self._start_read_limit()

    def resume_writing(self) -> None:
        """End the limit of the reader: it has all that there is."""
        self._stop_read_limit()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """End the limit of this request: the next one has its own from its first byte on."""
        self._restart(None, 0)
        self.idle_since = self.loop.time()
        if self.transport.is_closing():
            self.flow.resume_reading()  # to drop the rest
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._judge()  # of the next request, whose head has come with this one

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is no HTTP, if its answer has not begun; otherwise only end the connection."""
        if self.cycle is not None:  # the application may be answering it: that answer has nowhere to go
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(f"At most {MOST_HEADERS} headers." if self._requests.has_many_headers else msg)
        else:
            self.end()

    @property
    def _requests(self) -> _Requests:
        return cast("_Requests", self.conn)

    @property
    def _transport(self) -> _Transport:
        return cast("_Transport", self.transport)

    def is_idle(self) -> bool:
        """Whether no request of a known caller is being answered: it has sent half of one, or has an answer to read.

        Until its caller is known, no call is begun, and any number of strangers may have theirs wait for the look-up
        of a token: they keep no connection so. (A call that needs no caller is the newest: those end before it.)
        """
        is_answering = self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY) and not self.flow.write_paused
        return not is_answering or CALLER not in self.scope.get("state", {})

    def waits_for_caller(self) -> bool:
        """Whether a request waits for its caller to send its body, or to read its answer."""
        return self.flow.write_paused or self.conn.their_state is h11.SEND_BODY

    def has_said_all(self) -> bool:
        """Whether the connection is closing, and no answer waits for its caller to read it."""
        return self.is_idle() and self.transport.is_closing() and not self.transport.get_write_buffer_size()

    def end(self) -> None:
        """End the connection now."""
        self.has_ended = True  # the loop calls connection_lost later
        self.transport.abort()

    def _start_read_limit(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._read_limit = self.loop.call_later(READ_WITHIN, self._judge_reader)

    def _stop_read_limit(self) -> None:
        if self._read_limit is not None:
            self._read_limit.cancel()

    def _judge_reader(self) -> None:
        # (While something is unread, the answer has no further parts: uvicorn waits.)
        if self.transport.get_write_buffer_size() > self._unread - LEAST_READ:
            self.end()
        else:
            self._start_read_limit()

    def _judge(self) -> None:
        sends = self.conn.their_state
        if sends is h11.IDLE and sends is not self._sends:
            self._restart(sends, HEAD_WITHIN)
        elif sends is h11.SEND_BODY and sends is not self._sends:
            self._restart(sends, BODY_WITHIN)
        elif sends is not h11.IDLE and sends is not h11.SEND_BODY:
            self._restart(None, 0)

    def _restart(self, sends: type | None, within: float) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._sends = sends
        self._limit = None if sends is None else self.loop.call_later(within, self.end)


class _Requests(h11.Connection):
    """h11's side of a connection, which refuses many headers, a body of two lengths, and one of tiny or odd chunks.

    An answer that comes before the end of the body says that it is the last one: a program that sends the calls of many
    over a connection would lose the next one.
    """

    has_many_headers = False

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE:
            _, _, lines = self.trailing_data[0].partition(b"\n")
            if _are_many(lines):
                self.has_many_headers = True
                self._process_error(self.their_role)  # what h11 does where it raises
                raise h11.RemoteProtocolError("the request has too many headers")
        event = super().next_event()
        headers = {name for name, _ in event.headers} if isinstance(event, h11.Request) else ()
        # (A proxy before Joex may go by the other length, and take a part of this body for another's request.)
        if b"content-length" in headers and b"transfer-encoding" in headers:
            raise h11.RemoteProtocolError("the body has a Content-Length and a Transfer-Encoding")
        return event

    def _get_io_object(self, *given: Any) -> Any:
        found = super()._get_io_object(*given)
        return _Chunks() if isinstance(found, ChunkedReader) else found

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        if self.has_many_headers and isinstance(event, h11.Response):  # (uvicorn knows one status of wrong requests)
            event = h11.Response(status_code=431, headers=event.headers, reason=b"Request Header Fields Too Large")
        if isinstance(event, h11.Response) and self.their_state is h11.SEND_BODY:
            # Nobody reads the rest of the body, and it must not be parsed: the connection ends with this answer.
            headers = [(name, value) for name, value in event.headers if name != b"connection"]
            event = h11.Response(
                status_code=event.status_code, headers=[*headers, (b"connection", b"close")], reason=event.reason
            )
        return super().send_with_data_passthrough(event)


class _Chunks(ChunkedReader):
    """h11's reader of a body in chunks, which refuses tiny ones, much beside their data, and many headers after them.

    (h11 makes its errors the caller's.)
    """

    def __init__(self) -> None:
        super().__init__()
        self._chunks = self._size = self._beside = 0

    def __call__(self, buf: Any) -> Any:
        if self._reading_trailer and _are_many(bytes(buf)):
            raise h11.LocalProtocolError("the body has too many headers after its chunks")
        before = len(buf)
        event = super().__call__(buf)
        if isinstance(event, h11.EndOfMessage):  # (or what follows the chunks)
            return event
        self._beside += before - len(buf)
        if event is not None:
            self._chunks += event.chunk_start
            self._size += len(event.data)
            self._beside -= len(event.data)
        most = SMALL_CHUNKS + self._size / LEAST_CHUNK
        if self._chunks > most or self._beside > most * MOST_BESIDE:
            raise h11.LocalProtocolError("the chunks of the body are too small, or have much beside their data")
        return event


def _are_many(headers: bytes) -> bool:
    lines = headers.split(b"\n", MOST_HEADERS + 1)
    return len(lines) == MOST_HEADERS + 2 and not {b"", b"\r"}.intersection(lines[:-1])


class _Transport:
    """The transport of a connection, which closes it in steps if its caller may still be sending.

    To close it at once would send a reset, upon which the caller's system forgets an answer that it has not read.
    """

    def __init__(self, transport: asyncio.Transport, conn: h11.Connection) -> None:
        self._transport = transport
        self._conn = conn
        self._limit: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._limit is not None or self._transport.is_closing()

    def close(self) -> None:
        """Send all, and that this is all; drop what comes until the caller has ended, too, or for a moment."""
        if self.is_closing():
            return
        if self._conn.their_state in (h11.SEND_BODY, h11.ERROR) or self._conn.trailing_data[0]:  # (a further request)
            if self._transport.can_write_eof():  # TLS has no such half
                self._transport.write_eof()
            self._limit = asyncio.get_running_loop().call_later(PARTS_WITHIN, self.finish)
        else:
            self._transport.close()

    def finish(self) -> None:
        """Close it now."""
        if self._limit is not None:
            self._limit.cancel()
        self._transport.close()
