"""Settings: their sources, and the messages about wrong ones."""

import os
from datetime import timedelta

import pytest
from asyncpg.connect_utils import SessionAttribute

from joex.config import Settings, load_settings, split_address
from joex.core.priority_turns import CountingScheme
from joex.core.url import check_database_url
from joex.errors import ConfigError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder to work in, and an environment without settings."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("JOEX_"):
            monkeypatch.delenv(name)
    return tmp_path


def problem(flags=None):
    with pytest.raises(ConfigError) as caught:
        load_settings(flags)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_without_any_setting_the_documented_defaults_hold():
    settings = load_settings()
    assert settings.url is None
    assert settings.pool_size == 2
    assert settings.counting_scheme == CountingScheme(4, 1)
    assert settings.retries == 5
    assert settings.retry_delay == timedelta(minutes=1)
    assert settings.retry_jitter == 0.1
    assert settings.log_buffer_size == 500
    assert settings.wakeup_period == timedelta(minutes=30)
    assert settings.queues == ["default"]
    assert settings.http_address == "127.0.0.1:7878"
    assert settings.api_token is None


def test_the_file_stands_above_the_defaults_the_environment_above_the_file_and_flags_above_all(folder, monkeypatch):
    (folder / "joex.toml").write_text('pool_size = 3\nretries = 3\nlease = "3s"\n')
    monkeypatch.setenv("JOEX_RETRIES", "4")
    monkeypatch.setenv("JOEX_LEASE", "4s")
    settings = load_settings({"lease": "5s"})
    assert (settings.log_buffer_size, settings.pool_size, settings.retries) == (500, 3, 4)
    assert settings.lease == timedelta(seconds=5)


def test_a_flag_that_was_not_given_changes_nothing(monkeypatch):
    monkeypatch.setenv("JOEX_POOL_SIZE", "7")
    assert load_settings({"pool_size": None}).pool_size == 7


def test_settings_are_written_as_people_write_them(monkeypatch):
    monkeypatch.setenv("JOEX_QUEUES", "mail, ingest ,default")
    monkeypatch.setenv("JOEX_COUNTING_SCHEME", "3, 2")
    monkeypatch.setenv("JOEX_RETRY_DELAY", "1h30m")
    settings = load_settings()
    assert settings.queues == ["mail", "ingest", "default"]
    assert settings.counting_scheme == CountingScheme(3, 2)
    assert settings.retry_delay == timedelta(minutes=90)


def test_the_file_may_give_queues_as_a_list(folder):
    (folder / "joex.toml").write_text('queues = ["mail", "ingest"]\n')
    assert load_settings().queues == ["mail", "ingest"]


def test_a_wrong_flag_is_named_as_a_flag():
    message = problem({"pool_size": 0})
    assert message.startswith("--pool-size: ")
    assert "got 0" in message


def test_a_wrong_variable_is_named_as_a_variable(monkeypatch):
    monkeypatch.setenv("JOEX_COUNTING_SCHEME", "four")
    assert problem().startswith("JOEX_COUNTING_SCHEME: counting scheme: expected two numbers like '4,1'")


def test_a_wrong_key_of_the_file_is_named_with_the_file(folder):
    (folder / "joex.toml").write_text("retries = -1\n")
    assert problem().startswith("retries (joex.toml): ")


def test_a_setting_is_blamed_on_the_place_that_gave_it(folder, monkeypatch):
    (folder / "joex.toml").write_text("pool_size = 5\n")
    monkeypatch.setenv("JOEX_POOL_SIZE", "0")
    assert problem().startswith("JOEX_POOL_SIZE: ")


def test_a_key_of_the_file_that_does_not_exist_is_refused(folder):
    (folder / "joex.toml").write_text("poolsize = 5\n")
    assert problem() == "poolsize (joex.toml): there is no such setting"


def test_a_file_that_is_not_toml_is_named(folder):
    (folder / "joex.toml").write_text("pool_size: 5\n")
    assert problem().startswith(f"joex.toml ({folder}): ")


def test_several_wrong_settings_are_named_together(monkeypatch):
    monkeypatch.setenv("JOEX_RETRIES", "many")
    message = problem({"pool_size": 0})
    assert "--pool-size: " in message
    assert "; " in message
    assert "JOEX_RETRIES: " in message


WRONG = {
    "POOL_SIZE": ["0", "-1", "100001", "two", "1.5", ""],
    "QUEUES": ["", " , ", "a,a", "x" * 255],
    "COUNTING_SCHEME": ["", "4", "0,1", "4,1,1"],
    "RETRIES": ["-1", "x", "1000001"],
    "RETRY_DELAY": ["-1", "soon", "11y", "nan"],
    "MOST_LOSSES": ["-1", "1001"],
    "TIMEOUT": ["never", "-5s"],
    "LOG_BUFFER_SIZE": ["0", "x"],
    "WAKEUP_PERIOD": ["0", "1ms", "x"],
    "POLL_INTERVAL": ["0", "9ms"],
    "LEASE": ["0", "299ms", "2h"],
    "HTTP_ADDRESS": ["7878", "localhost", "localhost:99999", ":7878", "a b:1", "::1:7878"],
    "LOG_FORMAT": ["xml", "JSON"],
    "LOG_LEVEL": ["trace", "INFO"],
    "APP_ID": ["x" * 255],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_setting_is_one_line_that_begins_with_its_name(monkeypatch, name, value):
    monkeypatch.setenv(f"JOEX_{name}", value)
    assert problem().startswith((f"JOEX_{name}: ", "app_id: "))


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:secret@h/d",
        "h/d",
        "postgresql//secret",
        "postgresql://u:secret@h:port/d",
        "postgresql://[secret",
        "postgresql://u:p/secret@h/d",
        "postgresql://u:p#secret@h/d",
        "postgresql://u:p?secret@h/d",
        "postgresql://u:p@secret@h/d",
        "postgresql://u:secret/@h/d",
        "postgresql://u:p@a:5432,b:secret/d",
        "postgresql://u:secret@h:65536/d",
        "postgresql://u:secret@h/d?sslmode",
    ],
)
def test_a_wrong_database_url_is_refused_and_its_password_never_shown(monkeypatch, url):
    monkeypatch.setenv("JOEX_DATABASE_URL", url)
    message = problem()
    assert message.startswith("JOEX_DATABASE_URL: expected postgresql://user:password@host:port/database")
    assert "secret" not in message


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("postgresql://joe:S3cr/et@host/db", "the user name or the password has a reserved character"),
        ("postgresql://joe:1234/et@host/db", "the user name or the password has a reserved character"),
        ("postgresql://joe:1234#et@host/db", "the user name or the password has a reserved character"),
        ("postgresql://joe:1234?a=et@host/db", "the user name or the password has a reserved character"),
        ("postgresql://joe:S3c[ret]@host/db", "the user name or the password has a reserved character"),
        ("postgresql://joe:S3cr\u2100et@host/db", "the user name or the password has a reserved character"),
        ("postgresql://joe:S3cret@host:port/db", "a host or a port can't be read"),
        ("postgresql://joe:S3cret@host/db?sslmode", "the parameters after the ? can't be read"),
    ],
)
def test_an_ambiguous_database_url_is_refused_with_the_part_that_is_wrong(url, part):
    expected = "--database-url: expected postgresql://user:password@host:port/database; "
    assert problem({"database_url": url}).startswith(expected + part)


@pytest.mark.parametrize("parameter", ["port=x", "port=1,", "host=a,", "host=,"])
def test_a_parameter_that_the_driver_would_fail_on_is_refused(parameter):
    name = parameter.partition("=")[0]
    assert problem({"database_url": f"postgresql:///db?{parameter}"}).startswith(f"--database-url: {name}: expected ")


def test_a_kind_of_server_that_there_is_none_of_is_told_with_those_that_there_are(monkeypatch):
    monkeypatch.setenv("JOEX_DATABASE_URL", "postgresql://u:secret@a,b/d?target_session_attrs=readwrite")
    assert problem() == (
        "JOEX_DATABASE_URL: target_session_attrs: expected one of any, primary, standby, prefer-standby, read-write, "
        "read-only; got 'readwrite'"
    )


def test_each_kind_of_server_that_the_driver_knows_is_accepted():
    for kind in SessionAttribute:
        check_database_url(f"postgresql://a,b/d?target_session_attrs={kind.value}")


TOKEN = "the-secret-of-the-api"
SECRETS = {"database_url": "postgresql://u:secret@h/d", "api_token": TOKEN}


@pytest.mark.parametrize(("name", "secret"), SECRETS.items())
@pytest.mark.parametrize("source", ["flag", "variable", "key"])
def test_a_file_gives_a_secret(folder, monkeypatch, name, secret, source):
    (folder / "secret").write_text(f"{secret}\n")
    path = str(folder / "secret")
    flags = {}
    if source == "flag":
        flags[f"{name}_file"] = path
    elif source == "variable":
        monkeypatch.setenv(f"JOEX_{name.upper()}_FILE", path)
        monkeypatch.setenv(f"JOEX_{name.upper()}", "")
    else:
        (folder / "joex.toml").write_text(f"{name}_file = '{path}'\n")
    assert getattr(load_settings(flags), name).get_secret_value() == secret


def test_a_file_stands_where_its_source_stands(folder, monkeypatch):
    for name in ("low", "high"):
        (folder / name).write_text(f"postgresql://{name}/d")
    (folder / "joex.toml").write_text("database_url_file = 'missing'\n")
    monkeypatch.setenv("JOEX_DATABASE_URL_FILE", "low")
    assert load_settings().url == "postgresql://low/d"
    assert load_settings({"database_url_file": "high"}).url == "postgresql://high/d"
    assert load_settings({"database_url": "postgresql://flag/d"}).url == "postgresql://flag/d"


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_and_its_file_in_one_place_are_refused(folder, monkeypatch, name):
    (folder / "secret").write_text(SECRETS[name])
    monkeypatch.setenv(f"JOEX_{name.upper()}", SECRETS[name])
    monkeypatch.setenv(f"JOEX_{name.upper()}_FILE", "secret")
    expected = f"JOEX_{name.upper()}_FILE: JOEX_{name.upper()} is given too: give only one of them"
    assert problem() == expected


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "can't read this file: No such file or directory"),
        (b" \n", "the file is empty"),
        (b"postgresql://u:secret\xff@h/d", "the file is no text in UTF-8"),
        (b"postgresql://u:p/secret@h/d", "expected postgresql://"),
    ],
)
def test_a_wrong_file_is_named_by_its_setting_alone(folder, monkeypatch, content, said):
    if content is not None:
        (folder / "secret").write_bytes(content)
    monkeypatch.setenv("JOEX_DATABASE_URL_FILE", "secret")
    message = problem()
    assert message.startswith(f"JOEX_DATABASE_URL_FILE: {said}")
    assert "secret" not in message, "a user may have given the secret for the path"


def test_neither_password_nor_token_is_shown_with_the_settings():
    settings = load_settings({"database_url": "postgresql://u:secret@h/d", "api_token": "secret" * 3})
    assert settings.url == "postgresql://u:secret@h/d"
    assert "secret" not in repr(settings) + str(settings)


@pytest.mark.parametrize("token", ["x", "x" * 15, "x" * 16 + "\n", "x" * 16 + " ", "é" * 16])
def test_a_token_that_is_short_or_that_no_header_can_carry_is_refused_and_not_shown(monkeypatch, token):
    monkeypatch.setenv("JOEX_API_TOKEN", token)
    assert problem() == (
        "JOEX_API_TOKEN: expected at least 16 visible ASCII characters, no spaces; "
        "'openssl rand -hex 32' prints a good token"
    )


@pytest.mark.parametrize("given", ["flag", "variable"])
@pytest.mark.parametrize("kept", ["api_token", "api_token_file"])
def test_an_empty_token_overrides_no_token(folder, monkeypatch, given, kept):
    """Without one, programs on this machine would be served: a variable that a script left empty must not open all."""
    (folder / "secret").write_text(TOKEN)
    (folder / "joex.toml").write_text(f"{kept} = '{TOKEN if kept == 'api_token' else 'secret'}'\n")
    if given == "variable":
        monkeypatch.setenv("JOEX_API_TOKEN", "")
    token = load_settings({"api_token": ""} if given == "flag" else {}).api_token
    assert token is not None
    assert token.get_secret_value() == TOKEN


def test_a_token_of_sixteen_characters_is_accepted_and_an_empty_one_is_none(monkeypatch):
    token = load_settings({"api_token": "0123456789abcde!"}).api_token
    assert token is not None
    assert token.get_secret_value() == "0123456789abcde!"
    monkeypatch.setenv("JOEX_API_TOKEN", "")
    assert load_settings().api_token is None


def test_a_url_of_any_length_is_none():
    """It would be as long in each metric of an operator."""
    check_database_url("postgresql://joex@db/" + "x" * 4000)
    with pytest.raises(ValueError, match=r"^expected a URL of at most 4096 characters; got 900021$"):
        check_database_url("postgresql://joex@db/" + "x" * 900_000)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://localhost/db",
        "postgres://u:p@h:5432/db?sslmode=require",
        "postgresql://u@/db?host=/run/pg",
        "postgresql://u:p@a:5432,b:5433/db?target_session_attrs=read-write",
        "postgresql://a,b/db",
        "postgresql://u@[::1]:5432,[fe80::1]/db",
        "postgresql://u@%2Frun%2Fpg/db",
        "postgresql:///db",
        "postgresql://",
    ],
)
def test_a_postgresql_url_is_accepted(url):
    check_database_url(url)
    assert load_settings({"database_url": url}).url == url


def test_an_empty_database_url_means_the_embedded_server(monkeypatch):
    monkeypatch.setenv("JOEX_DATABASE_URL", "")
    assert load_settings().url is None


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:7878", ("127.0.0.1", 7878)),
        ("[::1]:80", ("::1", 80)),
        ("h.example:0", ("h.example", 0)),
        ("x", None),
    ],
)
def test_an_address_is_host_and_port(address, parts):
    assert split_address(address) == parts


def test_an_executor_in_a_pod_is_named_after_its_slot_so_that_a_restarted_one_has_the_same_name():
    first = load_settings({"pod_name": "documents-3-6d4cf56db6-xk8lp", "pod_namespace": "prod"})
    again = load_settings({"pod_name": "documents-3-6d4cf56db6-zzz42", "pod_namespace": "prod"})
    assert first.effective_app_id == again.effective_app_id == "prod/documents-3"


def test_the_given_app_id_stands_above_the_pods_name():
    assert load_settings({"pod_name": "a-6d4cf56db6-xk8lp", "app_id": "mine"}).effective_app_id == "mine"


def test_outside_of_kubernetes_the_host_gives_the_name():
    assert load_settings().effective_app_id


def test_every_setting_says_what_it_is():
    assert all(field.description for field in Settings.model_fields.values())


def test_settings_cannot_be_changed_once_they_are_loaded():
    with pytest.raises(ValueError, match="frozen"):
        load_settings().pool_size = 3  # type: ignore[misc]
