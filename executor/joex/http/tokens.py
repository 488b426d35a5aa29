"""Looks up the tokens of calls in the database."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable

from joex.client.client import Client
from joex.core.access import Scope
from joex.errors import ConfigError, DatabaseUnavailable
from joex.http.caller import Caller
from joex.http.connection_shares import holding_as
from joex.http.errors import Unjudged
from joex.store import tokens

KEPT_FOR = 2.0
"""Seconds for which a valid token is not looked up again: so long after its revocation it may still be served."""
_REMEMBERED_FOR = 86400.0
"""Seconds after that for which a token counts as one that was valid lately."""
_MOST_CONNECTIONS = 2
_FORM = re.compile(rf"{tokens.PREFIX}[A-Za-z0-9_-]{{43}}")


class Tokens:
    """The tokens in the database.

    A flood of wrong tokens takes at most two connections at a time: other calls still get the others. Tokens that were
    valid lately have two connections of their own: they don't wait behind the flood.

    Args:
        client: reads the tokens, and notes when they were used.
        clock: seconds that never go back.
    """

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._for_known = asyncio.Semaphore(_MOST_CONNECTIONS)
        self._for_others = asyncio.Semaphore(_MOST_CONNECTIONS)
        self._known: dict[bytes, tuple[Caller, float]] = {}  # those that were valid lately, in their order

    async def find(self, token: str) -> Caller | None:
        """The caller with this token; None: the token is unknown, expired or revoked.

        Raises:
            Unjudged: the database does not answer, or refuses Joex.
        """
        if not _FORM.fullmatch(token):
            return None
        digest = tokens.digest_of(token)
        caller = self._remembered(digest)
        if caller is None:
            async with self._for_known if digest in self._known else self._for_others:
                caller = self._remembered(digest) or await self._look_up(digest)  # another call may have looked it up
        return caller

    def _remembered(self, digest: bytes) -> Caller | None:
        caller, until = self._known.get(digest, (None, 0.0))
        return caller if self._clock() < until else None

    async def _look_up(self, digest: bytes) -> Caller | None:
        asked_at = self._clock()  # and not when the answer is here: it may be as old as the question
        try:
            # (It needs no share: there are connections for as many as look up at a time. The call that is judged may
            # have its share already: it would wait for a second one, and be judged for that, too.)
            with holding_as(None):
                async with self._client.using() as connection:
                    found = await tokens.find(connection, digest)
        except DatabaseUnavailable as error:
            raise Unjudged("the database does not answer, so Joex can't check the token") from error
        except ConfigError as error:
            wrong = "Joex's database URL, role or schema is wrong, so it can't check the token"
            raise Unjudged(wrong) from error
        self._known.pop(digest, None)
        while self._known and next(iter(self._known.values()))[1] + _REMEMBERED_FOR < asked_at:
            del self._known[next(iter(self._known))]
        if found is None:
            return None
        groups, queues = (None if names is None else tuple(names) for names in (found.groups, found.queues))
        caller = Caller(found.name, frozenset(map(Scope, found.scopes)), groups, queues)
        valid_for = KEPT_FOR if found.seconds_left is None else min(KEPT_FOR, found.seconds_left)
        self._known[digest] = (caller, asked_at + valid_for)
        return caller
