"""The lock of a `joex up` on its name, in a temporary folder that other users can write into."""

import os
import tempfile

import pytest

from joex.errors import ConfigError, JoexError
from joex_operator.local.lock import only_one


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The place of the folder of the lock, which is not there yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"joex-{os.geteuid()}"


@pytest.fixture
def precious(tmp_path):
    """A file of this user, which another user can't write."""
    file = tmp_path / "precious"
    file.write_text("precious")
    yield file
    assert file.read_text() == "precious"


def refused(name="box"):
    with pytest.raises(ConfigError) as caught, only_one(name, "with a.yaml"):
        pass
    return str(caught.value)


def test_a_name_is_held_until_the_end_of_the_block(folder):
    said = f"'box': process {os.getpid()}, with a.yaml; give another --name"
    for _ in range(2):
        with (
            only_one("box", "with a.yaml"),
            only_one("other", "with a.yaml"),
            pytest.raises(JoexError, match=said),
            only_one("box", "with b.yaml"),
        ):
            pass
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


def test_no_link_of_another_user_leads_to_a_file_of_this_one(folder, precious):
    folder.symlink_to(precious.parent)
    (precious.parent / "up-box.lock").symlink_to(precious)
    expected = f"{folder}: expected a folder of this user, closed to other users: remove it, or set TMPDIR"
    assert refused().startswith(expected)
    folder.unlink()
    folder.symlink_to(precious.parent / "missing")
    assert refused().startswith(expected)


def test_a_folder_that_is_a_file_open_to_others_or_of_another_user_is_refused(folder, monkeypatch):
    expected = "expected a folder of this user, closed to other users: remove it"
    folder.touch()
    assert expected in refused()
    folder.unlink()
    for mode in (0o710, 0o707):
        folder.mkdir()
        folder.chmod(mode)
        assert expected in refused()
        assert not list(folder.iterdir())
        folder.rmdir()
    user = os.geteuid() + 1
    other = folder.with_name(f"joex-{user}")
    other.mkdir(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert refused().startswith(f"{other}: {expected}")


def test_a_lock_that_is_no_file_of_this_user_is_refused(folder, precious):
    folder.mkdir(0o700)
    (folder / "up-link.lock").symlink_to(precious)
    assert refused("link").startswith(f"{folder}/up-link.lock: ")
    os.mkfifo(folder / "up-fifo.lock")
    assert refused("fifo").startswith(f"{folder}/up-fifo.lock: expected a file of this user: remove it")
    (folder / "up-folder.lock").mkdir()
    assert refused("folder").startswith(f"{folder}/up-folder.lock: Is a directory")
