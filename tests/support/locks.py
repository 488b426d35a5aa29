"""The locks for which sessions in a test's own database wait, or that they skip: other tests have their own."""

_HERE = "SELECT pid FROM pg_locks WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database())"

WAITING = f"FROM pg_locks WHERE NOT granted AND pid IN ({_HERE})"
"""Follows ``SELECT count(*)``. (A lock of a transaction is of no database; and within a transaction pg_stat_activity
shows no session that has come later.)"""

HAS_SKIPPED_AN_END = (
    "SELECT EXISTS (SELECT FROM pg_stat_activity "
    "WHERE datname = current_database() AND state = 'idle' AND query LIKE '%finish_many(%')"
)
"""Whether an executor has last tried to write ends. (One whose job another transaction locks is no error.)"""
