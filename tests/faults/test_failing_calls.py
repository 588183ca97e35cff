"""Whichever call of a scenario fails: an error in words or a fall-back, and nothing half written
that a next start believes."""

import errno
import itertools
import os
from types import SimpleNamespace

import numpy as np
import pytest

from pagoda.base import env
from pagoda.base.errors import CapacityError, PagodaError
from pagoda.core.messages import MediaItem
from pagoda.engine.kv_disk import KvDisk
from pagoda.engine.media import MediaFiles
from pagoda_agent.base.errors import AgentError, DriverError
from pagoda_agent.consent.line import Line, Memory
from tests.engine.test_kv_disk import MemoryStore, check, compute, make
from tests.faults.faults import KINDS, Faults, full
from tests.faults.stores import STORES, Store, claim_and_leave, serve_and_stop

# Their callers say these in words, engine/startup among them.
SAYS_OSERROR = {"kv-disk", "whole file"}


def broken() -> OSError:
    return OSError(errno.EIO, "Input/output error")


SAID = (PagodaError, AgentError)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("store", STORES, ids=lambda store: store.name)
def test_stores_come_back_with_old_or_new_contents(tmp_path, store: Store, kind: str):
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        folder.mkdir()
        store.write(folder, "old")
        known = (*SAID, OSError) if store.name in SAYS_OSERROR else SAID
        faults = Faults(kind, number, [full, broken][number % 2])
        said = None
        with faults.installed():
            try:
                store.write(folder, "new")
            except known as error:
                said = str(error)
        found = store.read(folder)
        if faults.calls < number:
            assert found == "new" and said is None
            break
        assert found in ("old", "new")
        assert said is None or "No space left" in said or "Input/output error" in said
        assert not list(folder.rglob("*.partial"))
        store.write(folder, "new")
        assert store.read(folder) == "new", "the next write goes through"


def test_a_line_that_was_not_kept_is_kept_the_next_time(tmp_path):
    memory, line = Memory(tmp_path / "agent.line"), Line(parts=("rm -rf",))
    with Faults("write", 1).installed(), pytest.raises(DriverError, match="No space left"):
        memory.keep(line)
    memory.keep(line)
    assert Memory(tmp_path / "agent.line").line.whole == "rm -rf"


@pytest.mark.parametrize("kind", KINDS)
def test_kept_prefixes_that_cannot_be_read_cost_nothing_else(tmp_path, kind: str):
    disk = KvDisk(tmp_path / "kv" / "model", 1 << 20)
    cache, memory = make()
    prefixes = disk.open(cache, memory)
    hashes = compute(cache, memory, "a", 5)
    prefixes.close()
    for number in itertools.count(1):
        cache, memory = make()
        with Faults(kind, number).installed() as faults:
            restored = disk.open(cache, memory).restore()
        check(cache, memory, "a", hashes)
        if faults.calls < number:
            assert restored
            break
        assert restored == 0


class ScarceStore(MemoryStore):
    """The Nth copy of blocks has no memory."""

    def __init__(self, num_blocks: int, faults: Faults):
        super().__init__(num_blocks)
        self._faults = faults

    def read_blocks(self, group, blocks):
        self._allocate()
        return super().read_blocks(group, blocks)

    def write_blocks(self, group, blocks, data):
        self._allocate()
        super().write_blocks(group, blocks, data)

    def _allocate(self) -> None:
        if self._faults.step("memory"):
            raise MemoryError


def test_kv_without_memory_to_copy_it(tmp_path):
    """Nothing is kept or taken that is not whole."""
    disk = KvDisk(tmp_path / "kv" / "model", 1 << 20)
    for number in itertools.count(1):
        cache, plain = make()
        faults = Faults("memory", number)
        scarce = ScarceStore(40, faults)
        scarce.data = plain.data
        try:
            prefixes = disk.open(cache, scarce)
        except MemoryError:
            continue
        hashes = compute(cache, plain, "a", 5)
        prefixes.close()
        again, memory = make()
        disk.open(again, memory).restore()
        check(again, memory, "a", hashes)
        if faults.calls < number:
            break
    assert number > 1 and check(again, memory, "a", hashes) == 5
    for number in itertools.count(1):
        faults = Faults("memory", number)
        cache, _ = make()
        scarce = ScarceStore(40, faults)
        try:
            disk.open(cache, scarce).restore()
        except MemoryError:
            continue
        check(cache, scarce, "a", hashes)
        if faults.calls < number:
            break
    assert check(cache, scarce, "a", hashes) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_of_a_request(tmp_path, kind: str):
    pixels = {name: np.zeros((2, 3), np.float32) for name in ("cat", "dog")}
    media = [MediaItem(content_hash=name, start=0, length=1, payload="") for name in pixels]
    for number in itertools.count(1):
        folder = tmp_path / str(number)
        folder.mkdir()
        files = MediaFiles()
        request = SimpleNamespace(req_id="a", media=media)
        with Faults(kind, number).installed() as faults:
            try:
                files.hold(request, folder, pixels)
                assert all(np.load(item.payload).shape == (2, 3) for item in media)
                files.release("a")
            except CapacityError as error:
                assert "No space left" in str(error) and "TMPDIR" in str(error)
            except OSError:
                assert kind == "open" and faults.calls > 2, "np.load of the engine"
                files.release("a")
        assert not list(folder.iterdir()) and not files._users and not files._files
        if faults.calls < number:
            break


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", ["server", "agent"])
def test_start_and_stop(tmp_path, monkeypatch, scenario: str, kind: str):
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path))
    assert env.cache_dir() == tmp_path
    descriptors = len(os.listdir("/proc/self/fd"))
    for number in itertools.count(1):
        with Faults(kind, number).installed() as faults:
            try:
                serve_and_stop(1234) if scenario == "server" else claim_and_leave("tcp://x")
            except AgentError as error:
                assert scenario == "agent" and "No space left" in str(error)
        assert len(os.listdir("/proc/self/fd")) == descriptors
        if faults.calls < number:
            break
    if scenario == "server":
        assert not list((tmp_path / "run").iterdir())
