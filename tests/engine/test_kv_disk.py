"""Cached prefixes on disk: written, read back, bounded; damage is noticed and harms nobody."""

import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pagoda.base.errors import ConfigError
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.kvcache.spec import KVGroupSpec, KVLayout
from pagoda.engine.kv_disk import KvDisk, block_contents, kv_disk
from pagoda.planner.resolved import ResolvedModel
from pagoda.weights.files import open_model

BLOCK_BYTES = (96, 32)


class MemoryStore:
    """Blocks as numpy rows."""

    def __init__(self, num_blocks: int):
        self.data = [np.zeros((num_blocks, size), np.uint8) for size in BLOCK_BYTES]

    def read_blocks(self, group: int, blocks: Sequence[int]) -> np.ndarray:
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
    return KvDisk(tmp_path / "kv" / "model.kv", 1 << 20)


def test_prefixes_come_back(disk):
    cache, store = make()
    first, second = compute(cache, store, "a", 5), compute(cache, store, "b", 3)
    saved = disk.save(cache, store)
    cache, store = make(64)
    assert disk.restore(cache, store) == saved > 0
    assert (check(cache, store, "a", first), check(cache, store, "b", second)) == (5, 3)
    assert cache.num_free_blocks == cache.num_blocks
    assert disk.restore(cache, store) == 0, "known blocks are not taken twice"
    mode = stat.S_IMODE(os.stat(disk.path).st_mode)
    folder = stat.S_IMODE(os.stat(disk.path.parent).st_mode)
    assert (mode, folder) == (0o600, 0o700)


def test_the_most_useful_blocks_are_kept_and_evicted_last(disk):
    cache, store = make()
    old, new = compute(cache, store, "a", 6), compute(cache, store, "b", 6)
    bounded = KvDisk(disk.path, 12 * sum(BLOCK_BYTES) // 2)
    bounded.save(cache, store)
    cache, store = make()
    bounded.restore(cache, store)
    assert check(cache, store, "b", new) > 0
    assert check(cache, store, "a", old) == 0


def test_less_room_than_there_was(disk):
    cache, store = make()
    hashes = compute(cache, store, "a", 8)
    disk.save(cache, store)
    cache, store = make(9)
    assert disk.restore(cache, store) == 8
    assert check(cache, store, "a", hashes) >= 0  # whatever fits adds up


def test_requests_evict_what_was_restored(disk):
    cache, store = make()
    compute(cache, store, "a", 8)
    disk.save(cache, store)
    cache, store = make()
    disk.restore(cache, store)
    hashes = compute(cache, store, "c", 19)
    assert check(cache, store, "c", hashes) == 19


def damage(raw: bytearray, place: int) -> None:
    raw[place] ^= 0xFF


def test_every_damaged_byte_is_noticed(disk):
    """A hash of another prefix would give it the wrong blocks."""
    cache, store = make()
    hashes = compute(cache, store, "a", 5)
    disk.save(cache, store)
    raw = disk.path.read_bytes()
    # Blocks have checksums of their own, so of them a few bytes do.
    blocks = 5 * sum(BLOCK_BYTES)
    for place in [*range(0, blocks, 61), *range(blocks, len(raw))]:
        changed = bytearray(raw)
        damage(changed, place)
        disk.path.write_bytes(changed)
        cache, store = make()
        disk.restore(cache, store)
        check(cache, store, "a", hashes)
        known = {one.hash for one in cache.cached_blocks()}
        assert known <= set(hashes), f"byte {place}"


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw[:-1],
        lambda raw: raw[: len(raw) // 2],
        lambda raw: b"",
        lambda raw: raw[:-16] + b"\xff" * 8 + raw[-8:],
        lambda raw: b"x" + raw,
        lambda raw: os.urandom(400),
    ],
    ids=["cut", "half", "empty", "length", "shifted", "noise"],
)
def test_damaged_files_are_passed_over(disk, change, caplog):
    cache, store = make()
    compute(cache, store, "a", 5)
    disk.save(cache, store)
    disk.path.write_bytes(bytes(change(disk.path.read_bytes())))
    cache, store = make()
    assert disk.restore(cache, store) == 0
    cache.check_integrity()


def test_a_damaged_block_is_left_out(disk):
    cache, store = make()
    hashes = compute(cache, store, "a", 5)
    saved = disk.save(cache, store)
    raw = bytearray(disk.path.read_bytes())
    raw[10] ^= 1
    disk.path.write_bytes(raw)
    cache, store = make()
    assert disk.restore(cache, store) == saved - 1
    assert check(cache, store, "a", hashes) < 5


def test_a_file_of_another_layout(disk):
    cache, store = make()
    compute(cache, store, "a", 5)
    disk.save(cache, store)
    cache, store = make()
    store.data = [np.zeros((40, 64), np.uint8)] * 2
    assert disk.restore(cache, store) == 0


def test_blocks_are_told_apart_by_all_that_their_bytes_depend_on():
    model = ResolvedModel("float32", "none", False, 64, 0)
    found = [
        block_contents(*variant)
        for variant in (
            (model, "float16", KVLayout("dimensions", 16), "avx512"),
            (model, "float16", KVLayout("tokens", 16), "avx512"),
            (model, "float16", KVLayout("dimensions", 64), "avx512"),
            (model, "int8", KVLayout("dimensions", 16), "avx512"),
            (model, "float16", KVLayout("dimensions", 16), "torch"),
            (replace(model, dtype="bfloat16"), "float16", KVLayout("dimensions", 16), "avx512"),
            (replace(model, quantization="int4"), "float16", KVLayout("dimensions", 16), "avx512"),
        )
    ]
    assert len(set(found)) == len(found)
    longer = replace(model, max_model_len=128, seed=1)
    assert block_contents(longer, "float16", KVLayout(), "avx512") == found[0]


def test_other_models_files_make_room(disk):
    cache, store = make()
    compute(cache, store, "a", 5)
    disk.path.parent.mkdir()
    others = [disk.path.with_name(f"{name}.kv") for name in ("old", "older")]
    for age, path in enumerate(others):
        path.write_bytes(b"x" * 700)
        os.utime(path, (1000 - age, 1000 - age))
    KvDisk(disk.path, 1600).save(cache, store)
    assert disk.path.exists() and not others[1].exists()


def test_nothing_cached_writes_nothing(disk):
    assert disk.save(*make()) == 0
    assert not disk.path.exists()
    assert disk.restore(*make()) == 0


def test_what_is_no_folder_is_said_at_the_start(tmp_path, tiny_config):
    file = tmp_path / "file"
    file.touch()
    files = open_model(Path(tiny_config.model.model))
    with pytest.raises(ConfigError, match="--kv-disk .* cannot be a folder"):
        kv_disk(str(file), 1 << 20, "layout", files)
    made = kv_disk(str(tmp_path / "kept"), 1 << 20, "layout", files)
    assert made.path.parent.is_dir() and made.path.suffix == ".kv"
    other = kv_disk(str(tmp_path / "kept"), 1 << 20, "another layout", files)
    assert other.path != made.path
