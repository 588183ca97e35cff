"""The pool of threads where cores are few, and where several threads of Python compute at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.kernels import packed
from tests.kernels.packed import _native

COLUMNS = 512


@pytest.mark.timeout(60)  # 0.2 s of work; a pool whose threads wait in turns never ends
def test_many_threads_on_one_core(one_core):
    """A decode step's many short parts, each handed to eight threads that take turns."""
    raw = packed.random_raw("Q4_1", 64, COLUMNS)
    x = torch.randn(1, COLUMNS)
    alone, crowded = _native.Native(1), _native.Native(8)
    expected = packed.multiply(alone, x, [packed.pack(alone, "Q4_1", raw, COLUMNS)])
    matrix = packed.pack(crowded, "Q4_1", raw, COLUMNS)
    for _ in range(500):
        assert torch.equal(packed.multiply(crowded, x, [matrix]), expected)


@pytest.mark.parametrize("threads", [1, 3])
def test_callers_take_turns(threads):
    """Callers of different sizes share the pool and the memory for converted activations."""
    native = _native.Native(threads)
    work = []
    for seed, storage in enumerate(("Q8_0", "Q4_K", "BF16", "Q6_K")):
        raw = packed.random_raw(storage, 48, COLUMNS, seed)
        x = torch.randn(1 + 9 * seed, COLUMNS, generator=torch.Generator().manual_seed(seed))
        matrix = packed.pack(native, storage, raw, COLUMNS)
        work.append((x, matrix, packed.multiply(native, x, [matrix])))

    def repeat(item) -> bool:
        x, matrix, expected = item
        return all(torch.equal(packed.multiply(native, x, [matrix]), expected) for _ in range(60))

    with ThreadPoolExecutor(len(work)) as callers:
        assert all(callers.map(repeat, work))
