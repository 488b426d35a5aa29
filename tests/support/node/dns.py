"""Names of Services for pods: ``NAME.NAMESPACE.svc``, with or without ``.cluster.local``, is the Service's address.

A server of the Domain Name System (RFC 1035) that answers one question in a datagram, with one address or none.
"""

import asyncio
import re
import struct
from collections.abc import Callable, Coroutine
from typing import Any, cast

Lookup = Callable[[str, str], Coroutine[Any, Any, str | None]]
"""Maps name and namespace of a Service to its address; None: there is no such Service."""

_SERVICE = re.compile(r"([a-z0-9-]+)\.([a-z0-9-]+)\.svc(?:\.cluster\.local)?\Z")
_HEADER = struct.Struct("!6H")
_ANSWER, _NO_SUCH_NAME = 0x8580, 0x8583  # a response, authoritative, recursion wanted and had
_A, _IN = 1, 1
_SECONDS = 1
_POINTER_TO_QUESTION = 0xC00C


class NameServer(asyncio.DatagramProtocol):
    """Answers by a lookup."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._answering: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport of the answers."""
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        """Answer a question."""
        task = asyncio.get_running_loop().create_task(self._answer(data, addr))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        name, kind, question = read_question(data)
        found = _SERVICE.match(name)
        address = await self._lookup(found[1], found[2]) if found else None
        self._transport.sendto(answer(data, question, address, has_answer=kind == _A), addr)


def read_question(data: bytes) -> tuple[str, int, bytes]:
    """The name that a message asks for, the kind of record, and the bytes of the question.

    >>> read_question(bytes(12) + b"\\1a\\2bc\\0" + b"\\0\\1\\0\\1")
    ('a.bc', 1, b'\\x01a\\x02bc\\x00\\x00\\x01\\x00\\x01')
    """
    labels, at = [], _HEADER.size
    while size := data[at]:
        labels.append(data[at + 1 : at + 1 + size].decode("ascii", "replace").lower())
        at += 1 + size
    (kind,) = struct.unpack_from("!H", data, at + 1)
    return ".".join(labels), kind, data[_HEADER.size : at + 5]


def answer(data: bytes, question: bytes, address: str | None, *, has_answer: bool) -> bytes:
    """The answer to a message: an address; none of this kind (``has_answer`` false); or that there is no such name."""
    (number,) = struct.unpack_from("!H", data)
    records = b""
    if address is not None and has_answer:
        parts = bytes(map(int, address.split(".")))
        records = struct.pack("!3HIH", _POINTER_TO_QUESTION, _A, _IN, _SECONDS, len(parts)) + parts
    flags = _NO_SUCH_NAME if address is None else _ANSWER
    return _HEADER.pack(number, flags, 1, bool(records), 0, 0) + question + records
