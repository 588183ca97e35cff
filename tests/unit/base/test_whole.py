"""Files that are there whole or not at all."""

import errno
import os
import stat
import subprocess
import sys

import pytest

from pagoda.base import whole
from pagoda.base.whole import put_in_place, remove_partials, whole_file, write_whole


def test_old_contents_stay_until_the_new_ones_are_whole(tmp_path):
    path = tmp_path / "notes.json"
    write_whole(path, "old", 0o600)
    with whole_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.json"]


def test_what_fails_leaves_the_old_contents_and_nothing_else(tmp_path):
    path = tmp_path / "notes.json"
    write_whole(path, "old")
    with pytest.raises(KeyboardInterrupt), whole_file(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.json"]


def test_bytes_reach_the_disk_before_their_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def renamed(*names: object) -> None:
        done.append("rename")
        replace(*names)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    write_whole(tmp_path / "a", b"x")
    (tmp_path / "b").write_bytes(b"y")
    put_in_place(tmp_path / "b", tmp_path / "c")
    assert done == ["file", "rename", "folder"] * 2
    assert not (tmp_path / "b").exists() and (tmp_path / "c").read_bytes() == b"y"


def test_the_mode_is_the_callers(tmp_path):
    write_whole(tmp_path / "secret", "x", 0o600)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


DIES = """
import os, pathlib, sys
from pagoda.base.whole import whole_file
with whole_file(pathlib.Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    os._exit(7)
"""


def test_what_a_killed_writer_left_is_removed_and_what_is_written_now_is_not(tmp_path):
    path = tmp_path / "notes.json"
    assert subprocess.run([sys.executable, "-c", DIES, path], check=False).returncode == 7
    (left,) = tmp_path.iterdir()
    other = tmp_path / "other.json"
    with whole_file(other) as file:
        remove_partials(tmp_path)
        assert not left.exists()
        file.write(b"{}")
    assert other.read_bytes() == b"{}"


def test_a_writer_tidies_up_for_its_own_file_alone(tmp_path):
    for name in (".a.0.partial", ".b.0.partial", "c.partial"):
        (tmp_path / name).touch()
    write_whole(tmp_path / "a", b"")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".b.0.partial", "a", "c.partial"]


def test_file_systems_that_sync_no_folder_and_lock_nothing(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    fsync = os.fsync

    def only_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(whole.fcntl, "flock", refuse)
    monkeypatch.setattr(os, "fsync", only_files)
    write_whole(tmp_path / "a", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"
