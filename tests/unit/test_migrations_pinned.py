"""A change of the SQL functions reaches existing databases only with a new numbered migration.

`.venv/bin/python -m tests.unit.test_migrations_pinned` renews the pin below. Until the first release, it may do so
under the same number; from the first release on, each change of `store/sql/*.sql` needs a numbered file in
`store/migrations/` (it may hold no more than a comment), because `joex migrate` reinstalls the functions only if there
is a new number.
"""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from joex.store.migrate import functions_digest, migrations

NEWEST = "0001_jobs"
DIGEST = "26007f3bb29022e2"


def test_the_functions_change_only_together_with_a_new_numbered_migration():
    found = (migrations()[-1].name, functions_digest())
    assert found == (NEWEST, DIGEST), (
        "store/sql/*.sql or store/migrations/ has changed. Existing databases reinstall the functions only for a new "
        "number: add store/migrations/NNNN_*.sql (a comment is enough), then renew the pin with "
        "'.venv/bin/python -m tests.unit.test_migrations_pinned'."
    )


def test_migrations_are_numbered_without_a_gap():
    assert [migration.number for migration in migrations()] == list(range(1, len(migrations()) + 1))


TAKES_AWAY = re.compile(
    r"\bDROP (TABLE|COLUMN|FUNCTION|VIEW|TYPE|DOMAIN|SEQUENCE|TRIGGER)\b"
    r"|\bRENAME\b|\bSET NOT NULL\b|\bALTER COLUMN \w+ TYPE\b",
    re.IGNORECASE,
)
"""What programs of earlier versions may miss, or may not be able to write any more."""


@pytest.mark.parametrize(
    "sql", ["DROP TABLE a", "ALTER TABLE a RENAME b TO c", "ALTER TABLE a ALTER COLUMN b TYPE text"]
)
def test_what_takes_something_away_is_noticed(sql):
    assert TAKES_AWAY.search(sql)


def test_a_migration_that_takes_something_away_names_the_oldest_version_that_may_use_the_schema():
    """Else executors of earlier versions, which may be at work, fail after the migration, and nothing says why."""
    for before, one in pairwise(migrations()):
        assert before.min_reader <= one.min_reader <= one.number, one.name
        assert one.min_reader > before.min_reader or not TAKES_AWAY.search(one.sql), one.name


def test_no_migration_is_empty():
    assert all(migration.sql.strip() for migration in migrations())


if __name__ == "__main__":
    pin = f'NEWEST = "{migrations()[-1].name}"\nDIGEST = "{functions_digest()}"\n'
    here = Path(__file__)
    here.write_text(re.sub(r'^NEWEST = ".*"\nDIGEST = ".*"\n', pin, here.read_text(), flags=re.MULTILINE))
    print(pin, end="")
