"""The locks for which sessions in a test's own database wait: those of other tests lock rows at the same time."""

_HERE = "SELECT pid FROM pg_locks WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database())"

WAITING = f"FROM pg_locks WHERE NOT granted AND pid IN ({_HERE})"
"""Follows ``SELECT count(*)``. (A lock of a transaction is of no database; and within a transaction pg_stat_activity
shows no session that has come later.)"""
