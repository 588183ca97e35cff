"""The disk's room and speed, of a model's file or of the model cache."""

import os
from pathlib import Path

import pytest

from pagoda.doctor.machine import disk


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
