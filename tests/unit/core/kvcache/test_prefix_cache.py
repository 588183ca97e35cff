from hypothesis import given
from hypothesis import strategies as st

from pagoda.core.kvcache.prefix_cache import PrefixCache
from pagoda.core.kvcache.spec import KVGroupSpec

HASHES = [bytes([i]) for i in range(8)]
SIZE = 4


def usable(present: set[int], window: int | None, count: int) -> bool:
    """Whether a query at position `count * SIZE` finds every position that it sees."""
    first = 0 if window is None else max(0, count * SIZE - window + 1)
    return all(position // SIZE in present for position in range(first, count * SIZE))


@given(
    windows=st.lists(st.sampled_from([None, 1, 2, 5, 6, 11]), min_size=1, max_size=3),
    data=st.data(),
    max_blocks=st.integers(0, 10),
)
def test_match_is_the_longest_prefix_all_groups_can_use(windows, data, max_blocks):
    groups = [
        KVGroupSpec("full" if window is None else "sliding", (i,), 1, 1, SIZE, window)
        for i, window in enumerate(windows)
    ]
    cache = PrefixCache(groups)
    present = [data.draw(st.sets(st.integers(0, 7))) for _ in groups]
    for group, indices in enumerate(present):
        for index in indices:
            cache.insert(group, HASHES[index], 1 + 10 * group + index)
    cache.check()
    count, tables, attended, elsewhere = cache.match(HASHES, max_blocks)
    assert not elsewhere
    assert attended >= count
    fits = [
        length
        for length in range(min(max_blocks, 8) + 1)
        if all(usable(*pair, length) for pair in zip(present, windows, strict=True))
    ]
    assert count == max(fits)
    for group, (table, window) in enumerate(zip(tables, windows, strict=True)):
        assert len(table) == count
        for index, block in enumerate(table):
            seen = window is None or (index + 1) * SIZE > count * SIZE - window + 1
            assert block == (1 + 10 * group + index if seen else 0)


def test_first_block_of_equal_content_stays():
    cache = PrefixCache([KVGroupSpec("full", (0,), 1, 1, SIZE)])
    cache.insert(0, HASHES[0], 1)
    cache.insert(0, HASHES[0], 2)
    assert cache.match(HASHES, 8) == (1, [[1]], 1, [])
    cache.evict(0, [2, 1])
    assert cache.match(HASHES, 8) == (0, [[]], 0, [])
    cache.check()


def test_what_is_elsewhere_belongs_to_the_prefix():
    cache = PrefixCache([KVGroupSpec("full", (0,), 1, 1, SIZE)])
    cache.insert(0, HASHES[0], 1)
    cache.insert(0, HASHES[2], 3)
    cache.is_elsewhere = lambda group, block_hash: block_hash == HASHES[1]
    assert cache.match(HASHES, 8) == (3, [[1, 0, 3]], 3, [(0, 1)])
