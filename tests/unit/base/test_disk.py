"""How fast a file is read past the page cache."""

import os
from pathlib import Path

import pytest

from pagoda.base import disk

MIB = 1 << 20


def test_reading_stops_at_the_end_of_the_file(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(bytes(10 * MIB))
    speed = disk.read_speed(file, seconds=60.0)
    if speed is None:
        pytest.skip("this file system only reads through memory")
    assert speed > 0


def test_speed_is_bytes_by_time(tmp_path, monkeypatch):
    # Each read takes a hundredth of a second, and the first one ten times as long.
    ticks = iter([0.0, 0.1, 0.11, 0.12, 0.13])
    monkeypatch.setattr(disk.time, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(disk.os, "preadv", lambda handle, buffers, offset: 4 * MIB)
    file = tmp_path / "model.gguf"
    file.touch()
    assert disk.read_speed(file, seconds=0.125) == pytest.approx(4 * MIB / 0.01)


def test_a_disk_so_slow_that_time_is_up_after_one_read(tmp_path, monkeypatch):
    """There is a second, as the first waited for the disk to wake."""
    ticks = iter([0.0, 9.0, 11.0])
    monkeypatch.setattr(disk.time, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(disk.os, "preadv", lambda handle, buffers, offset: 4 * MIB)
    file = tmp_path / "model.gguf"
    file.touch()
    assert disk.read_speed(file) == 2 * MIB


def test_what_cannot_be_read_has_no_speed(tmp_path, monkeypatch):
    assert disk.read_speed(tmp_path / "nowhere") is None
    short = tmp_path / "short"
    short.write_bytes(b"GGUF")
    assert disk.read_speed(short) is None

    def refused(handle, buffers, offset):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(disk.os, "preadv", refused)
    assert disk.read_speed(short) is None


def test_a_folder_in_memory(tmp_path, monkeypatch):
    number = f"{os.major(tmp_path.stat().st_dev)}:{os.minor(tmp_path.stat().st_dev)}"
    monkeypatch.setattr(disk, "PROC", tmp_path)
    assert not disk.is_memory(tmp_path)  # nobody says so
    (tmp_path / "self").mkdir()
    for kind, expected in (("ext4", False), ("tmpfs", True)):
        (tmp_path / "self/mountinfo").write_text(
            "21 28 0:0 / /proc rw shared:12 - proc proc rw\n"
            f"28 1 {number} / / rw,relatime shared:1 - {kind} /dev/root rw\n"
        )
        assert disk.is_memory(tmp_path) is expected


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
def test_shared_memory_is_memory():
    assert disk.is_memory(Path("/dev/shm"))
