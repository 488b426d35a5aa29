"""A change of the SQL functions reaches existing databases only with a new numbered migration.

To update the pin: `.venv/bin/python -m tests.unit.test_migrations_pinned` prints the lines to write below. As long as
no version was released, the digest may be renewed under the same number; from the first release on, each change of
`store/sql/*.sql` needs a numbered file in `store/migrations/` (it may hold no more than a comment), because
`joex migrate` installs the functions anew only when a number was added.
"""

from joex.store.migrate import functions_digest, migrations

NEWEST = "0001_jobs"
DIGEST = "to be pinned"


def test_the_functions_change_only_together_with_a_new_numbered_migration():
    found = (migrations()[-1].name, functions_digest())
    assert found == (NEWEST, DIGEST), (
        "store/sql/*.sql or store/migrations/ has changed. Databases that exist install the functions anew only when a "
        "number was added: add store/migrations/NNNN_*.sql (a comment is enough), then write what "
        "'python -m tests.unit.test_migrations_pinned' prints into this test."
    )


def test_migrations_are_numbered_without_a_gap():
    assert [migration.number for migration in migrations()] == list(range(1, len(migrations()) + 1))


def test_no_migration_is_empty():
    assert all(migration.sql.strip() for migration in migrations())


if __name__ == "__main__":
    print(f'NEWEST = "{migrations()[-1].name}"\nDIGEST = "{functions_digest()}"')
