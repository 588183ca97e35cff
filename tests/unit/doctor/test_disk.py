"""The disk's room and speed, of a model's file or of the model cache."""

import os
from pathlib import Path

import pytest

from pagoda.doctor.machine import disk

MIB = 1 << 20


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path))
    return tmp_path


def test_a_cache_that_is_not_there_yet(cache):
    found = disk.probe_disk()
    assert found.folder == str(cache / "models")
    stat = os.statvfs(cache)
    assert found.free == pytest.approx(stat.f_bavail * stat.f_frsize, rel=0.1)
    assert found.read_speed is found.read_file is None


def test_the_largest_file_of_the_cache_is_read(cache, monkeypatch):
    folder = cache / "models/small"
    folder.mkdir(parents=True)
    (folder / "model.gguf").write_bytes(bytes(3000))
    (folder / "config.json").write_bytes(bytes(10))
    (folder / "gone.gguf").symlink_to(cache / "nowhere")
    read = []
    monkeypatch.setattr(disk, "read_speed", lambda file: read.append(file) or 5e8)
    found = disk.probe_disk()
    assert read == [folder / "model.gguf"]
    assert (found.read_speed, found.read_file) == (5e8, str(folder / "model.gguf"))


def test_a_models_own_disk(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "read_speed", lambda file: None)
    file = tmp_path / "elsewhere/model.gguf"
    file.parent.mkdir()
    file.touch()
    found = disk.probe_disk(file)
    assert (found.folder, found.read_speed, found.read_file) == (str(file.parent), None, None)


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
    ticks = iter([0.0, 2.0])
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
