"""Cached prefixes on disk: written while they come, read back, bounded; damage is noticed and harms
nobody, and what ends the process costs at most what was just being written."""

import errno
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pagoda.base.errors import ConfigError
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.kvcache.spec import KVGroupSpec, KVLayout
from pagoda.engine import kv_disk as kept
from pagoda.engine import kv_journal
from pagoda.engine.kv_disk import KvDisk, block_contents, kv_disk
from pagoda.engine.kv_journal import MAGIC
from pagoda.planner.resolved import ResolvedModel
from pagoda.weights.files import open_model

BLOCK_BYTES = (96, 32)
ROOT = Path(__file__).parents[2]


class MemoryStore:
    """Blocks as numpy rows."""

    def __init__(self, num_blocks: int):
        self.data = [np.zeros((num_blocks, size), np.uint8) for size in BLOCK_BYTES]
        self.num_read = 0

    def read_blocks(self, group: int, blocks: Sequence[int]) -> np.ndarray:
        self.num_read += len(blocks)
        return self.data[group][list(blocks)]

    def write_blocks(self, group: int, blocks: Sequence[int], data: np.ndarray) -> None:
        self.data[group][list(blocks)] = data


def make(num_blocks: int = 40) -> tuple[KVCacheManager, MemoryStore]:
    groups = [KVGroupSpec("full", (0,), 1, 1, 4), KVGroupSpec("sliding", (1,), 1, 1, 4, 9)]
    return KVCacheManager(groups, num_blocks), MemoryStore(num_blocks)


def compute(cache: KVCacheManager, store: MemoryStore, name: str, num_blocks: int) -> list[bytes]:
    """A request comes and goes; its blocks' bytes tell whose they are."""
    hashes = [f"{name}{index:031d}".encode() for index in range(num_blocks)]
    tables = cache.open(name)
    assert cache.allocate(tables, num_blocks * 4) is not None
    for group, table in enumerate(tables.tables):
        for index, block in enumerate(table):
            store.data[group][block] = content(name, group, index)
    cache.advance(tables, hashes, num_blocks * 4)
    cache.free(tables)
    return hashes


def content(name: str, group: int, index: int) -> int:
    return (ord(name) + 7 * group + 31 * index) % 256


def check(cache: KVCacheManager, store: MemoryStore, name: str, hashes: list[bytes]) -> int:
    """How many blocks of a prefix are cached, each with its own bytes."""
    hit = cache.match_prefix(hashes, len(hashes) * 4)
    for group, table in enumerate(hit.tables):
        for index, block in enumerate(table):
            if block:
                assert (store.data[group][block] == content(name, group, index)).all()
    cache.check_integrity()
    return hit.num_tokens // 4


@pytest.fixture
def disk(tmp_path) -> KvDisk:
    return KvDisk(tmp_path / "kv" / "model", 1 << 20)


def segments(disk: KvDisk) -> list[Path]:
    return sorted(disk.stem.parent.glob("*.kv"))


def save(disk: KvDisk, *names: str, num_blocks: int = 5) -> dict[str, list[bytes]]:
    """An engine's life: it computes prefixes and ends in peace."""
    cache, store = make()
    prefixes = disk.open(cache, store)
    prefixes.restore()
    hashes = {name: compute(cache, store, name, num_blocks) for name in names}
    prefixes.close()
    return hashes


def restored(disk: KvDisk, num_blocks: int = 40) -> tuple[KVCacheManager, MemoryStore, int]:
    cache, store = make(num_blocks)
    return cache, store, disk.open(cache, store).restore()


def test_prefixes_come_back(disk):
    hashes = {**save(disk, "a"), **save(disk, "b", num_blocks=3)}
    cache, store, count = restored(disk, 64)
    # Of the sliding group, those that the window has passed are not cached.
    assert count >= 8
    assert check(cache, store, "a", hashes["a"]) == 5
    assert check(cache, store, "b", hashes["b"]) == 3
    assert cache.num_free_blocks == cache.num_blocks
    (mode,) = {stat.S_IMODE(os.stat(path).st_mode) for path in segments(disk)}
    folder = stat.S_IMODE(os.stat(disk.stem.parent).st_mode)
    assert (mode, folder) == (0o600, 0o700)


def test_what_is_known_is_not_written_again(disk):
    save(disk, "a")
    before = [path.stat().st_size for path in segments(disk)]
    save(disk, "a")
    assert [path.stat().st_size for path in segments(disk)] == before


def test_blocks_are_written_while_the_engine_serves(disk):
    """Those of windows once the next ones have come; all of them once the engine is idle."""
    cache, store = make()
    prefixes = disk.open(cache, store)
    hashes = compute(cache, store, "a", 5)
    while prefixes.write_back(True):
        pass
    deadline = time.monotonic() + 60
    found = 0
    while found < 5:
        assert time.monotonic() < deadline, "nothing was written"
        again, memory, _ = restored(disk)
        found = check(again, memory, "a", hashes)
    prefixes.close()


def test_busy_engines_copy_a_little_at_a_time(disk, monkeypatch):
    monkeypatch.setattr(kept, "_LEAST_BYTES", 3 * BLOCK_BYTES[0])
    monkeypatch.setattr(kept, "_MOST_BYTES", 2 * BLOCK_BYTES[0])
    monkeypatch.setattr(kept, "_SETTLED_STEPS", 4)
    cache, store = make()
    prefixes = disk.open(cache, store)
    compute(cache, store, "a", 2)
    assert not prefixes.write_back(False) and not store.num_read, "too few to be worth it"
    compute(cache, store, "b", 5)
    assert prefixes.write_back(False) and store.num_read == 2
    reads = []
    for _ in range(6):
        before = store.num_read
        prefixes.write_back(False)
        reads.append(store.num_read - before)
    assert 2 in reads and max(reads) <= 2 * BLOCK_BYTES[0] // BLOCK_BYTES[1]
    prefixes.close()


def test_the_texts_written_last_come_back_whole_where_room_is_short(disk):
    old, new = save(disk, "a", num_blocks=6)["a"], save(disk, "b", num_blocks=6)["b"]
    cache, store, _ = restored(disk, 12)
    assert check(cache, store, "b", new) == 6
    assert check(cache, store, "a", old) < 6


def test_requests_evict_what_was_restored(disk):
    save(disk, "a", num_blocks=8)
    cache, store, _ = restored(disk)
    assert check(cache, store, "c", compute(cache, store, "c", 19)) == 19


def test_no_damaged_byte_is_believed(disk):
    """A hash of another prefix would give it the wrong blocks."""
    hashes = save(disk, "a")["a"]
    (path,) = segments(disk)
    raw = path.read_bytes()
    for place in range(0, len(raw), 3):
        changed = bytearray(raw)
        changed[place] ^= 0xFF
        path.write_bytes(changed)
        cache, store, _ = restored(disk)
        check(cache, store, "a", hashes)
        assert {one.hash for one in cache.cached_blocks()} <= set(hashes), f"byte {place}"


def test_a_segment_that_ends_anywhere_has_what_stands_before(disk):
    hashes = save(disk, "a")["a"]
    (path,) = segments(disk)
    raw, counts = path.read_bytes(), []
    for length in (*range(0, len(raw), 5), len(raw)):
        path.write_bytes(raw[:length])
        cache, store, count = restored(disk)
        check(cache, store, "a", hashes)
        counts.append(count)
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] > 5


def test_files_of_others_are_passed_over(disk):
    disk.stem.parent.mkdir()
    for number, raw in enumerate((b"", b"x" * 100, MAGIC, MAGIC + os.urandom(400))):
        disk.stem.with_name(f"model-{number}.kv").write_bytes(raw)
    assert restored(disk)[2] == 0


def test_blocks_of_another_layout(disk, caplog):
    save(disk, "a")
    cache, store = make()
    store.data = [np.zeros((40, 64), np.uint8)] * 2
    assert disk.open(cache, store).restore() == 0
    assert "other sizes" in caplog.text


def test_the_folder_stays_within_its_bound(disk):
    """Segments of any model go, the oldest first; what is written last is there."""
    disk.stem.parent.mkdir()
    other = disk.stem.with_name("other-1.kv")
    other.write_bytes(b"x" * 700)
    os.utime(other, (1000, 1000))
    bounded = KvDisk(disk.stem, 6000)
    cache, store = make()
    prefixes = bounded.open(cache, store)
    for name in "abcdefghij":
        hashes = compute(cache, store, name, 5)
        while prefixes.write_back(True):
            pass
    prefixes.close()
    assert not other.exists()
    assert 3000 < sum(path.stat().st_size for path in segments(disk)) <= 6000
    cache, store, _ = restored(bounded)
    assert check(cache, store, "j", hashes) == 5


def test_two_servers_share_a_folder(disk):
    caches = [make(), make()]
    both = [disk.open(*one) for one in caches]
    hashes = {}
    for (cache, store), prefixes, name in zip(caches, both, "ab", strict=True):
        hashes[name] = compute(cache, store, name, 5)
        prefixes.write_back(True)
    for prefixes in both:
        prefixes.close()
    cache, store, _ = restored(disk)
    assert [check(cache, store, name, hashes[name]) for name in "ab"] == [5, 5]


def test_a_full_disk_is_said_once(disk, caplog, monkeypatch):
    cache, store = make()
    prefixes = disk.open(cache, store)
    monkeypatch.setattr(kv_journal.Journal, "_make_room", full)
    compute(cache, store, "a", 5)
    prefixes.write_back(True)
    prefixes.close()
    assert caplog.text.count("no longer written") == 1
    assert "No space left on device" in caplog.text


def full(journal: kv_journal.Journal, nbytes: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_nothing_cached_writes_nothing(disk):
    disk.open(*make()).close()
    assert not segments(disk)
    assert restored(disk)[2] == 0


WRITER = """
import sys
from pathlib import Path
from pagoda.engine.kv_disk import KvDisk
from tests.engine.test_kv_disk import compute, make

disk = KvDisk(Path(sys.argv[1]), 1 << 18)
cache, store = make(400)
prefixes = disk.open(cache, store)
prefixes.restore()
print("ready", flush=True)
while True:
    for name in "abcdefghijklmnopqrst":
        compute(cache, store, name, 9)
        while prefixes.write_back(True):
            pass
    cache.reset_prefix_cache()
    prefixes = disk.open(cache, store)
"""


def test_what_kill_leaves_is_right(disk):
    """A writer is killed at random moments, again and again: what the next one reads is right."""
    chance = random.Random(3)
    found = 0
    for _ in range(5):
        command = [sys.executable, "-c", WRITER, str(disk.stem)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as child:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            time.sleep(chance.uniform(0, 0.15))  # any moment will do
            child.send_signal(signal.SIGKILL)
        cache, store, _ = restored(disk, 400)
        for name in "abcdefghijklmnopqrst":
            hashes = [f"{name}{index:031d}".encode() for index in range(9)]
            found += check(cache, store, name, hashes)
    assert found, "nothing was ever kept"


def test_blocks_are_told_apart_by_all_that_their_bytes_depend_on():
    model = ResolvedModel("float32", "none", False, 64, 0)
    found = [
        block_contents(*variant)
        for variant in (
            (model, "float16", KVLayout("dimensions", 16), "avx512"),
            (model, "float16", KVLayout("tokens", 16), "avx512"),
            (model, "float16", KVLayout("dimensions", 64), "avx512"),
            (model, "int8", KVLayout("dimensions", 16), "avx512"),
            (model, "q4_0", KVLayout("dimensions", 16), "avx512"),
            (model, "float16", KVLayout("dimensions", 16), "torch"),
            (replace(model, dtype="bfloat16"), "float16", KVLayout("dimensions", 16), "avx512"),
            (replace(model, quantization="int4"), "float16", KVLayout("dimensions", 16), "avx512"),
        )
    ]
    assert len(set(found)) == len(found)
    longer = replace(model, max_model_len=128, seed=1)
    assert block_contents(longer, "float16", KVLayout(), "avx512") == found[0]


def test_what_is_no_folder_is_said_at_the_start(tmp_path, tiny_config):
    file = tmp_path / "file"
    file.touch()
    files = open_model(Path(tiny_config.model.model))
    with pytest.raises(ConfigError, match="--kv-disk .* cannot be a folder"):
        kv_disk(str(file), 1 << 20, "layout", files)
    made = kv_disk(str(tmp_path / "kept"), 1 << 20, "layout", files)
    assert made.stem.parent.is_dir()
    other = kv_disk(str(tmp_path / "kept"), 1 << 20, "another layout", files)
    assert other.stem != made.stem
