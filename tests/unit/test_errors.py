"""The tree of errors, and the translation of foreign errors."""

import inspect
import re

import asyncpg
import pytest

import joex
from joex import errors
from joex.store.errors import LEASE_LOST, translate, translated

NAMED = {
    **vars(errors),
    **{name: getattr(joex, name) for name in joex.__all__},
}  # a public error may be of another module
CLASSES = [cls for cls in NAMED.values() if inspect.isclass(cls) and issubclass(cls, errors.JoexError)]


def postgres_error(kind, message="no"):
    return kind(message)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_of_joex_is_a_joex_error_with_a_reason_to_exist(cls):
    assert inspect.getdoc(cls)


def test_the_tree_is_drawn_in_the_docstring_as_it_is():
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__ or ""))
    assert drawn == {cls.__name__ for cls in CLASSES} - {"JoexError", "TaskSignal"}
    assert errors.InvalidJob.__mro__[1:3] == (errors.ConfigError, errors.JoexError)
    assert issubclass(errors.InvalidJob, ValueError)
    assert issubclass(errors.SchemaError, errors.ConfigError)


def test_what_a_task_raises_to_choose_its_end_is_no_error_of_the_caller():
    for signal in (errors.Fail, errors.Retry, errors.Cancel):
        assert issubclass(signal, errors.TaskSignal)
        assert not issubclass(signal, errors.ConfigError)


def test_a_retry_carries_its_delay():
    assert errors.Retry("later", after="5m").after == "5m"
    assert errors.Retry().after is None


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ("soon", "after: expected something like '30s', '1m', '1h30m' or '7d'; got 'soon'"),
        (-1, "after: expected 0 to 3650 days; got -1"),
        (float("nan"), "after: expected 0 to 3650 days; got nan"),
        (True, "after: expected a duration such as '30s', or seconds; got True"),
        ([], "after: expected a duration such as '30s', or seconds; got []"),
    ],
)
def test_a_retry_refuses_a_delay_that_is_none(after, said):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message follows
        errors.Retry("later", after=after)
    assert str(caught.value) == said


TRANSLATIONS = [
    (ConnectionRefusedError(111, "refused"), errors.DatabaseUnavailable),
    (TimeoutError(), errors.DatabaseUnavailable),
    (asyncpg.ConnectionDoesNotExistError("gone"), errors.DatabaseUnavailable),
    (asyncpg.CannotConnectNowError("starting up"), errors.DatabaseUnavailable),
    (asyncpg.AdminShutdownError("shutdown"), errors.DatabaseUnavailable),
    (asyncpg.TooManyConnectionsError("too many"), errors.DatabaseUnavailable),
    (asyncpg.ReadOnlySQLTransactionError("standby"), errors.DatabaseUnavailable),
    (asyncpg.DeadlockDetectedError("deadlock"), errors.DatabaseUnavailable),
    (asyncpg.SerializationError("serialization"), errors.DatabaseUnavailable),
    (asyncpg.QueryCanceledError("timeout"), errors.DatabaseUnavailable),
    (asyncpg.InterfaceError("connection is closed"), errors.DatabaseUnavailable),
    (asyncpg.InvalidPasswordError("wrong password"), errors.ConfigError),
    (asyncpg.InvalidCatalogNameError("no such database"), errors.ConfigError),
    (asyncpg.InsufficientPrivilegeError("no right"), errors.ConfigError),
    (asyncpg.UndefinedTableError('relation "joex_private.job" does not exist'), errors.SchemaError),
    (asyncpg.UndefinedFunctionError("function joex.submit does not exist"), errors.SchemaError),
    (asyncpg.InvalidSchemaNameError('schema "joex" does not exist'), errors.SchemaError),
    (asyncpg.CheckViolationError("check"), errors.InvalidJob),
    (asyncpg.InvalidTextRepresentationError("enum"), errors.InvalidJob),
    (asyncpg.CharacterNotInRepertoireError("0x00"), errors.InvalidJob),
]


@pytest.mark.parametrize(("foreign", "ours"), TRANSLATIONS, ids=[type(foreign).__name__ for foreign, _ in TRANSLATIONS])
def test_a_foreign_error_becomes_the_one_that_says_what_to_do_and_stays_its_cause(foreign, ours):
    with pytest.raises(ours) as caught, translated():
        raise foreign
    assert type(caught.value) is ours
    assert caught.value.__cause__ is foreign
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [asyncpg.InvalidPasswordError, asyncpg.UndefinedTableError, asyncpg.DataError])
def test_an_error_of_a_server_is_cut_because_it_may_send_any_number_of_characters(kind):
    said = str(translate(postgres_error(kind, "x\n y" * 5_000_000)))
    assert "\n" not in said
    assert said.endswith("… (cut, 20,000,000 characters)")
    assert len(said) < 2100


def test_the_code_with_which_take_refuses_a_dead_executor_becomes_lease_lost():
    class Refused(asyncpg.PostgresError):
        sqlstate = LEASE_LOST

    assert isinstance(translate(Refused("the lease of executor 7 has ended")), errors.LeaseLost)


def test_the_drivers_confusion_about_a_connection_that_is_lost_is_not_passed_on():
    error = translate(asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"))
    assert isinstance(error, errors.DatabaseUnavailable)
    assert str(error) == "the connection to the database was lost"


def test_an_error_of_ours_passes_as_it_is():
    mine = errors.WorkerConflict("mine")
    with pytest.raises(errors.WorkerConflict) as caught, translated():
        raise mine
    assert caught.value is mine


def test_an_error_of_the_callers_own_code_passes_as_it_is():
    with pytest.raises(ZeroDivisionError), translated():
        _ = 1 / 0
