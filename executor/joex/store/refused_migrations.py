"""The texts of refused migrations and grants: what is in the way, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from joex.store.in_the_way import Other

LOCK_OUT = "--lock-out-executors"
"""The flag of ``joex migrate`` that makes a migration though executors that live are too old for it."""

_MOST_NAMED = 3


def named(transactions: Sequence[Other]) -> str:
    """The transactions in the way, each with the time since which it lasts, if this role may know that."""
    return ", ".join(f"{one.what}{_since(one.since)})" for one in transactions)


def schema_in_use(transactions: str) -> str:
    """Other transactions were in the way all the time. ``transactions``: named, if they could be."""
    return (
        "the schema can't be changed while other transactions use it: "
        f"{transactions or 'a transaction that makes it, or has ended'}; nothing was done: "
        "end them (pg_terminate_backend), or try again later"
    )


def rights_in_use(role: str, objects: Sequence[str], transactions: str) -> str:
    """Other transactions have written the rights on these objects all the time. ``transactions``: as above."""
    direct = [one for one in objects if one.startswith("joex_private.") and "(" not in one]  # (tables and sequences)
    more = f" and {len(objects) - 1} more" if len(objects) > 1 else ""
    until = "until then the role uses this directly" if direct else "functions and views judge by the scopes already"
    return (
        f"the scopes of {role} are set; but its rights on {(direct or objects)[0]}{more} are as before, because "
        f"another transaction has written them: {transactions or 'one that has ended'}; {until}; "
        "end it (pg_terminate_backend), and give the same command again"
    )


def type_in_use(name: str, owner: str) -> str:
    """Another role has made something with a type that the migration changes."""
    return (
        f"the {name} of the role {owner} uses a type of Joex that the migration changes; "
        f"nothing was done: drop it, as {owner} or as a superuser, and run 'joex migrate' again"
    )


def has_dependents(detail: str) -> str:
    """Another role has made something on a view or a function that the migration drops. ``detail``: of the server."""
    lines = detail.splitlines()
    more = f", and {len(lines) - _MOST_NAMED} more" if len(lines) > _MOST_NAMED else ""  # (it names up to a hundred)
    return (
        f"the {', '.join(lines[:_MOST_NAMED])}{more}; nothing was done: drop what is not Joex's, "
        "as its owner or as a superuser, and run 'joex migrate' again"
    )


def locks_out(version: int, min_reader: int, app_ids: Sequence[str]) -> str:
    """Executors that live, under these app-ids, are too old for the schema after the migration."""
    more = f" and {len(app_ids) - _MOST_NAMED} more" if len(app_ids) > _MOST_NAMED else ""
    return (
        f"the migration to version {version} would lock out living executors, which don't know "
        f"version {min_reader} of the schema: {', '.join(app_ids[:_MOST_NAMED])}{more}; nothing was done: "
        "replace them with executors of the release before this one, or let them drain with "
        f"'joex migrate {LOCK_OUT}'"
    )


def planted(name: str, owner: str, *, is_superuser: bool) -> str:
    """Something in the schemas belongs to a role that could run code with the user's rights."""
    rights = "your rights of a superuser" if is_superuser else "your rights"
    return (
        f"the {name} belongs to the role {owner}, which could run code with {rights}: "
        f"connect as {owner}, or drop it if you don't know it"
    )


def _since(began: datetime | None) -> str:
    return "" if began is None else f" since {began.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
