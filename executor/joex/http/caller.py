"""Who calls, and what the call may do: each route declares the scopes that it needs.

`joex.http.auth`, or `joex.console.sign_in`, finds out who calls, before all routes. A route declares its scopes as a
dependency, ``needs(...)``; no route is served that does not. `joex.http.route.Route` judges by them before it reads the
body; the routes of the console, which read forms themselves, are `judged`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

from fastapi import Depends, HTTPException, Request, params, status

from joex.client.client import Client
from joex.core.access import Bounds, Scope, is_own_id
from joex.http.errors import cut
from joex.http.state import ASK_AGAIN, CALLER
from joex.store import audit, tokens
from joex.store.errors import translated
from joex.store.statement import Connection

_MOST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller: the name of its token, and what that may do. ``groups``, ``queues``: None: all.

    ``is_user``: it is a user of the console, whom a proxy has signed in: the name is the user's.
    """

    name: str
    scopes: frozenset[Scope]
    groups: tuple[str, ...] | None = None
    queues: tuple[str, ...] | None = None
    is_user: bool = False

    @property
    def key(self) -> str:
        """What no other caller has, as a user may have the name of a token: limits and turns are those of a key."""
        return f"{'user' if self.is_user else 'token'} {self.name}"

    @property
    def shown(self) -> str:
        """As messages name it."""
        return f"the {'user' if self.is_user else 'token'} {self.name!r}"

    @property
    def tenant(self) -> Hashable:
        """As `key`, but one for all tokens with the same bounds: a tenant has two of them while it replaces one."""
        bounds = self.groups and frozenset(self.groups), self.queues and frozenset(self.queues)
        return bounds if self.bounds.are_set else self.key

    @property
    def bounds(self) -> Bounds:
        """What it may reach."""
        return Bounds(self.queues, self.groups)

    def check_place(self, queue: str, group: str, *, at: str = "", of_queue: str = "queue") -> None:
        """Refuse to put something into a queue or a group that is not the caller's.

        Args:
            queue: where it would be.
            group: and of which tenant.
            at: what precedes the field in the message, such as ``jobs[3].``.
            of_queue: the field that names the queue.

        Raises:
            HTTPException: 403; the message names the field.
        """
        if self.groups is not None and group not in self.groups:
            self._refuse(f"{at}group", "groups", self.groups, group)
        if self.queues is not None and queue not in self.queues:
            self._refuse(f"{at}{of_queue}", "queues", self.queues, queue)

    def check_all_groups(self, what: str) -> None:
        """Refuse a change that concerns all groups of a queue to a caller that is bound to groups.

        Raises:
            HTTPException: 403.
        """
        if self.groups is not None:
            detail = f"{what} concerns other groups too, and {self.shown} is bound to groups"
            raise HTTPException(status.HTTP_403_FORBIDDEN, detail)

    def check_own_name(self, field: str, name: Any, queue: str, group: str) -> None:
        """Refuse to give a name that all tenants share, unless it is one of the caller's group (or queue).

        Trackers and ids of keyed jobs are such names. That one is taken would
        tell a bound caller that something else exists; and the caller could take a name that another one needs.

        Raises:
            HTTPException: 403; the message names the field.
        """
        if not self.bounds.are_set:
            return
        own = queue if self.groups is None else group
        if not is_own_id(name, own):
            detail = (
                f"{field}: all tenants share these names: with {self.shown}, give it as '{cut(own)}/NAME', "
                "where NAME has no slash"
            )
            raise HTTPException(status.HTTP_403_FORBIDDEN, detail)

    def _refuse(self, field: str, kind: str, names: tuple[str, ...], given: str) -> NoReturn:
        shown = ", ".join([*map(cut, names[:_MOST_SHOWN]), *(["..."] if len(names) > _MOST_SHOWN else [])])
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            f"{field}: {self.shown} is bound to the {kind} {shown}; got {cut(given)!r}",
        )

    @property
    def sees_payloads(self) -> bool:
        """Whether it may read arguments, results, errors and logs."""
        return Scope.PAYLOADS in self.scopes


OWNER = Caller(tokens.OWNER, frozenset(Scope))
"""The caller with JOEX_API_TOKEN; and, where that is not set, programs of its own user on its machine."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The dependency of a route that needs one of these scopes; none: every caller is served.

    ``whole_system``: the route shows or changes what belongs to no group and no queue, so it refuses bound callers.
    """

    scopes: tuple[Scope, ...]
    whole_system: bool = False

    async def __call__(self) -> None:
        """Nothing: FastAPI calls the dependencies of a route when it has read and parsed its body."""

    async def judge(self, request: Request) -> None:
        """Refuse a caller that has none of these scopes, or that is bound and asks for the whole system.

        Raises:
            HTTPException: 403.
        """
        if not self.scopes:
            return
        caller = await caller_of(request)
        if not caller.scopes.intersection(self.scopes):
            wanted = " or ".join(self.scopes)
            has = ", ".join(scope for scope in Scope if scope in caller.scopes)
            raise HTTPException(
                status.HTTP_403_FORBIDDEN, f"this call needs the scope {wanted}; {caller.shown} has {has}"
            )
        if self.whole_system:
            refuse_if_bound(caller)


def refuse_if_bound(caller: Caller) -> None:
    """Refuse a bound caller.

    Raises:
        HTTPException: 403.
    """
    if caller.bounds.are_set:
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            f"this call concerns the whole system; {caller.shown} is bound to groups or queues",
        )


def needs(*scopes: Scope, whole_system: bool = False) -> params.Depends:
    """Declare that a route needs one of these scopes; none: that it serves every caller."""
    declared: params.Depends = Depends(Needs(scopes, whole_system))
    return declared


def needs_of(route: Any) -> Needs:
    """What a route has declared.

    Raises:
        RuntimeError: it has declared no scope: a mistake of its author.
    """
    found = [one.dependency for one in route.dependencies if isinstance(one.dependency, Needs)]
    if len(found) != 1:
        raise RuntimeError(f"the route {route.path} must declare its scopes, once: dependencies=[needs(...)]")
    return found[0]


async def judged(request: Request) -> None:
    """Judge a call by what its route has declared: the first dependency of routes that FastAPI reads no body for.

    Raises:
        HTTPException: 403.
    """
    await needs_of(request.scope["route"]).judge(request)


async def caller_of(request: Request) -> Caller:
    """The caller of a request."""
    caller: Caller = getattr(request.state, CALLER)
    return caller


async def still_valid(request: Request) -> bool:
    """Whether the token of a call that has waited is still valid."""
    ask_again: Callable[[], Awaitable[Caller | None]] | None = getattr(request.state, ASK_AGAIN, None)
    return ask_again is None or await ask_again() is not None


async def refuse_if_revoked(request: Request) -> None:
    """Refuse a call that has waited if its token is no longer valid.

    Raises:
        HTTPException: 401.
    """
    if not await still_valid(request):
        raise HTTPException(status.HTTP_401_UNAUTHORIZED, "the token has expired, or was revoked")


async def refuse_if_gone(request: Request, *, is_read: bool = False) -> None:
    """Refuse a read that has waited if its caller has hung up. A change is made all the same, as if it had not waited.

    ``is_read``: it is a read whatever its method: programs read keyed jobs by POST.

    Raises:
        HTTPException: 400.
    """
    if (is_read or request.method in {"GET", "HEAD"}) and await request.is_disconnected():
        raise HTTPException(status.HTTP_400_BAD_REQUEST, "the caller has gone")


TheCaller = Annotated[Caller, Depends(caller_of)]


@asynccontextmanager
async def acting(client: Client, caller: Caller) -> AsyncIterator[Connection]:
    """A transaction in which the caller changes something: the audit names its token (see sql/17_audit.sql).

    Whatever another transaction may hold is for `joex.http.turns.acting_in_turn`.
    """
    with translated():  # (the commit, too, may find the database away, or a lock that another session has)
        async with client.using() as connection, connection.transaction():
            await audit.begin(connection, caller.name)
            yield connection
