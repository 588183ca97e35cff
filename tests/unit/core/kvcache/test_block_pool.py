from hypothesis import given
from hypothesis import strategies as st

from pagoda.core.kvcache.block_pool import BlockPool

operations = st.lists(
    st.tuples(st.sampled_from(["allocate", "share", "release"]), st.integers(0, 9), st.booleans()),
    max_size=60,
)


@given(operations)
def test_pool_behaves_like_a_plain_list(steps):
    """Free blocks leave in order; cached ones return to the end, others to the front."""
    pool = BlockPool(8)
    pool.grant(range(1, 8))
    free, refs, cached = list(range(1, 8)), dict.fromkeys(range(1, 8), 0), set()
    for operation, number, keep in steps:
        if operation == "allocate":
            count = min(number, len(free))
            taken, free = free[:count], free[count:]
            cached -= set(taken)
            refs.update(dict.fromkeys(taken, 1))
            assert pool.allocate(count) == taken
            continue
        block = 1 + number % 7
        if operation == "share":
            pool.share([0, block])
            free = [b for b in free if b != block]
            refs[block] += 1
        elif refs[block] > 0:
            if keep:
                cached.add(block)
            pool.release([block, 0], cached)
            refs[block] -= 1
            if refs[block] == 0:
                free = [*free, block] if block in cached else [block, *free]
        assert pool.free_blocks() == free
        assert pool.num_free == len(free)
        assert pool.ref_counts[1:] == list(refs.values())
