import pytest

from pagoda.base.errors import CapacityError
from pagoda.core.kvcache.block_hash import BlockHashes
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.kvcache.spec import KVGroupSpec

FULL = KVGroupSpec("full", (0,), 1, 8, 4)
SLIDING = KVGroupSpec("sliding", (1, 2), 1, 8, 4, window=6)
TOKENS = list(range(16))


def hashes() -> list[bytes]:
    return BlockHashes(4).extend(TOKENS, 4)


def test_blocks_from_elsewhere_are_published_by_a_holder_that_is_no_request():
    kv = KVCacheManager([FULL], 9)
    loader = kv.open("disk")
    assert kv.allocate(loader, 16) == [[1, 2, 3, 4]]
    kv.check_integrity()
    assert kv.match_prefix(hashes(), 16).num_tokens == 0, "not before they are filled"
    kv.advance(loader, hashes(), 16)
    kv.free(loader)
    hit = kv.match_prefix(hashes(), 15)
    assert (hit.num_tokens, hit.tables, kv.bytes_shared(hit)) == (12, [[1, 2, 3]], 0)
    keeper = kv.open("copy to another engine")
    kv.attach(keeper, hit)
    kv.check_integrity()
    assert kv.num_free_blocks == 5 and kv.bytes_shared(hit) == 3 * FULL.block_bytes
    other = kv.open("a request")
    assert kv.allocate(other, 24) is None, "held blocks are not to be had"
    assert kv.allocate(other, 20) is not None
    kv.check_integrity()
    assert kv.match_prefix(hashes(), 16).num_tokens == 12, "the fourth block was reused"


def test_prefixes_are_forgotten_from_their_ends_and_the_oldest_first():
    kv = KVCacheManager([FULL], 9)
    chains = [BlockHashes(4, salt=salt).extend(TOKENS, 4) for salt in ("old", "new")]
    for chain in chains:
        tables = kv.open("request")
        kv.allocate(tables, 16)
        kv.advance(tables, chain, 16)
        kv.free(tables)
    tables = kv.open("request")
    kv.allocate(tables, 12)
    assert [kv.match_prefix(chain, 16).num_tokens for chain in chains] == [4, 16]


def test_blocks_nobody_wants_again_are_reused_before_cached_ones():
    kv = KVCacheManager([FULL], 9)
    tables = kv.open("request")
    kv.allocate(tables, 24)
    kv.advance(tables, hashes(), 16)
    kv.free(tables)
    kv.allocate(kv.open("other"), 16)
    assert kv.match_prefix(hashes(), 16).num_tokens == 16


def test_each_group_has_its_own_table_and_sliding_ones_give_back():
    kv = KVCacheManager([FULL, SLIDING], 20)
    tables = kv.open("request")
    full, sliding = kv.allocate(tables, 16)
    places = [{kv.layout.slab_of(group, block) for block in blocks}
              for group, blocks in enumerate((full, sliding))]  # fmt: skip
    assert [len(slabs) for slabs in places] == [2, 4] and not places[0] & places[1]
    assert tables.num_held == 8
    assert tables.capacity == 16
    kv.advance(tables, [], 15)  # The query at 15 sees 10 .. 15.
    assert tables.tables == [full, [0, 0, *sliding[2:]]]
    kv.advance(tables, [], 16)  # The one at 16 sees 11 .. 16.
    assert tables.num_held == 6
    kv.advance(tables, [], 17)  # The one at 17 sees 12 .. 17.
    assert tables.tables[1] == [0, 0, 0, sliding[3]]
    kv.check_integrity()
    kv.free(tables)
    assert kv.num_free_blocks == kv.num_blocks == 19


def test_required_blocks_are_bounded_by_the_window():
    kv = KVCacheManager([SLIDING], 20)
    size = SLIDING.block_bytes
    assert kv.bytes_required(16, 4) == 4 * size
    assert kv.bytes_required(4000, 4) == kv.bytes_required(400, 4) < 8 * size
    kv = KVCacheManager([FULL, SLIDING], 20)
    assert kv.bytes_required(400, 4) > 100 * FULL.block_bytes


def test_integrity_check_finds_damage():
    kv = KVCacheManager([FULL], 9)
    tables = kv.open("request")
    kv.allocate(tables, 8)
    kv.check_integrity()
    tables.tables[0][1] = 1
    with pytest.raises(RuntimeError, match="twice in the tables of request"):
        kv.check_integrity()
    tables.tables[0][1] = 5
    with pytest.raises(RuntimeError):
        kv.check_integrity()


def test_useless_pools_are_refused():
    with pytest.raises(CapacityError, match="1 blocks"):
        KVCacheManager([FULL], 1)
    with pytest.raises(ValueError, match="block size"):
        KVCacheManager([FULL, KVGroupSpec("full", (1,), 1, 8, 16)], 9)


def test_why_a_block_was_missed():
    kv = KVCacheManager([FULL], 9)
    chains = [BlockHashes(4, salt=salt).extend(TOKENS, 4) for salt in ("old", "new", "other")]
    nothing = kv.match_prefix(chains[0], 16)
    assert kv.why_missed(chains[0], nothing) == "new"
    for chain in chains:
        tables = kv.open("request")
        kv.allocate(tables, 16)
        kv.advance(tables, chain, 16)
        kv.free(tables)
    assert kv.why_missed(chains[2], kv.match_prefix(chains[2], 16)) is None
    old = kv.match_prefix(chains[0], 16)
    assert old.num_tokens < 16
    assert kv.why_missed(chains[0], old) == "evicted"


def test_blocks_that_come_from_elsewhere_are_cached_and_free():
    kv = KVCacheManager([FULL], 5)
    chain = hashes()
    blocks = [kv.adopt(0, block_hash, b"") for block_hash in reversed(chain[:3])]
    assert None not in blocks and kv.adopt(0, chain[0], b"") is None, "known already"
    kv.check_integrity()
    assert (kv.num_free_blocks, kv.match_prefix(chain, 16).num_tokens) == (4, 12)
    assert [one.hash for one in kv.cached_blocks()] == chain[:3], "the last adopted goes last"
    tables = kv.open("request")
    assert kv.allocate(tables, 8) is not None
    assert kv.match_prefix(chain, 16).num_tokens == 8
    assert kv.adopt(0, chain[2], b"") is not None and kv.match_prefix(chain, 16).num_tokens >= 4
    kv.check_integrity()
    assert KVCacheManager([FULL], 5, enable_prefix_caching=False).adopt(0, chain[0], b"") is None
