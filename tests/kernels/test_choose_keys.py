"""Sparse attention: which keys are chosen, and attention to just these."""

import pytest
import torch

from pagoda.core.kvcache.spec import KVLayout
from pagoda.kernels import cpu
from pagoda.kernels.cpu.ops import CpuOps
from pagoda.kernels.ref import attention as reference
from pagoda.kernels.ref import ops as plain
from pagoda.kernels.ref.kv_cache import views

NATIVE = pytest.mark.skipif(cpu.native() is None, reason="the native kernels are not built here")
BLOCK, COUNT = 16, 9
# Of three requests: a prompt from its start on, one that goes on, one that replies; then nobody.
LENS, QUERIES = [40, 70, 130], [40, 21, 1]
PADDING = 2


def latent_cache(dim: int, dtype: torch.dtype, keys: str = "dimensions") -> torch.Tensor:
    blocks = 1 + sum(-(-n // BLOCK) for n in LENS)
    rows = torch.randn(blocks, BLOCK * dim).to(dtype)
    return views(rows, rows, KVLayout(keys, BLOCK), 1)[0]


def step() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    table = torch.zeros(len(LENS), 9, dtype=torch.int32)
    order = (torch.randperm(sum(-(-n // BLOCK) for n in LENS)) + 1).tolist()
    for row, length in zip(table, LENS, strict=True):
        row[: -(-length // BLOCK)] = torch.tensor([order.pop() for _ in range(-(-length // BLOCK))])
    starts = torch.tensor([0, *QUERIES]).cumsum(0).int()
    return table, starts, torch.tensor(LENS, dtype=torch.int32)


def choosing() -> torch.Tensor:
    """Rows of queries behind the first COUNT tokens."""
    places = [torch.arange(n - q, n) for n, q in zip(LENS, QUERIES, strict=True)]
    return torch.cat((torch.cat(places) >= COUNT, torch.zeros(PADDING, dtype=torch.bool)))


def ask(form, q, weights, cache, count: int = COUNT) -> torch.Tensor:
    return form.choose_keys(q, weights, cache, *step_of(cache), count)


def step_of(cache: torch.Tensor):
    torch.manual_seed(5)
    return step()


def by_hand(q, weights, cache, table, starts, lens) -> list[list[int]]:
    """Of each query behind the first COUNT tokens; one key after the other."""
    found = []
    for req, length in enumerate(lens.tolist()):
        for row in range(starts[req], starts[req + 1]):
            place = length - int(starts[req + 1]) + row
            if place < COUNT:
                continue
            scores = []
            for at in range(place + 1):
                slot = int(table[req, at // BLOCK]) * BLOCK + at % BLOCK
                key = cache[slot // BLOCK, 0, slot % BLOCK].double()
                score = (weights[row].double() * (q[row].double() @ key).relu()).sum()
                scores.append((-float(score), at, slot))
            best = sorted(scores)[:COUNT]
            found.append([slot for _, _, slot in sorted(best, key=lambda one: one[1])])
    return found


@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_highest_are_chosen(heads: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rows, dim = sum(QUERIES) + PADDING, 16
    q = torch.randn(rows, heads, dim)
    weights = torch.randn(rows, heads)
    cache = latent_cache(40, dtype)[..., -dim:]
    expected = by_hand(q, weights, cache, *step_of(cache))
    assert ask(plain, q, weights, cache)[choosing()].tolist() == expected
    if (native := cpu.native()) is not None:
        assert ask(CpuOps(native), q, weights, cache)[choosing()].tolist() == expected


@NATIVE
@pytest.mark.parametrize("weight", [1.0, torch.nan])
def test_earlier_ones_of_equals_are_chosen(weight: float) -> None:
    cache = torch.zeros_like(latent_cache(16, torch.float32))
    table, starts, lens = step_of(cache)
    rows = sum(QUERIES) + PADDING
    q, weights = torch.ones(rows, 2, 16), torch.full((rows, 2), weight)
    own = [int(table[2, 0]) * BLOCK + i for i in range(COUNT)]
    for form in (plain, CpuOps(cpu.native())):
        chosen = form.choose_keys(q, weights, cache, table, starts, lens, COUNT)
        assert chosen[sum(QUERIES) - 1].tolist() == own


@NATIVE
def test_what_is_chosen_does_not_depend_on_others() -> None:
    torch.manual_seed(1)
    form = CpuOps(cpu.native())
    rows = sum(QUERIES) + PADDING
    q, weights = torch.randn(rows, 4, 16), torch.randn(rows, 4)
    cache = latent_cache(16, torch.float32)
    table, starts, lens = step_of(cache)
    whole = form.choose_keys(q, weights, cache, table, starts, lens, COUNT)
    for req in range(len(LENS)):
        own = slice(int(starts[req]), int(starts[req + 1]))
        alone = form.choose_keys(
            q[own], weights[own], cache, table[req : req + 1],
            torch.tensor([0, QUERIES[req]], dtype=torch.int32), lens[req : req + 1], COUNT,
        )  # fmt: skip
        used = choosing()[own]
        assert torch.equal(alone[used], whole[own][used])


def attended_by_hand(q, cache, chosen, table, starts, lens, scale) -> torch.Tensor:
    out = torch.zeros(q.shape, dtype=torch.double)
    for req, length in enumerate(lens.tolist()):
        for row in range(starts[req], starts[req + 1]):
            place = length - int(starts[req + 1]) + row
            slots = chosen[row].tolist()
            if place < COUNT:
                places = range(place + 1)
                slots = [int(table[req, at // BLOCK]) * BLOCK + at % BLOCK for at in places]
            keys = torch.stack([cache[slot // BLOCK, 0, slot % BLOCK] for slot in slots]).double()
            weights = (q[row].double() @ keys.T * scale).softmax(-1)
            out[row] = weights @ keys
    return out


@pytest.mark.parametrize("keys", ["dimensions", "tokens"])
@pytest.mark.parametrize("heads", [4, 130])
def test_attention_sees_what_is_chosen(heads: int, keys: str) -> None:
    torch.manual_seed(2)
    rows, dim = sum(QUERIES) + PADDING, 24
    q = torch.randn(rows, heads, dim)
    cache = latent_cache(dim + 16, torch.float32, keys)
    latent, index = cache[..., :dim], cache[..., dim:]
    table, starts, lens = step_of(cache)
    weights = torch.randn(rows, 2)
    chosen = plain.choose_keys(torch.randn(rows, 2, 16), weights, index, table, starts, lens, COUNT)
    expected = attended_by_hand(q, latent, chosen, table, starts, lens, 0.3)
    forms = [reference]
    if (native := cpu.native()) is not None and keys == "dimensions":
        forms.append(CpuOps(native))
    for form in forms:
        found = form.paged_attention(
            q, latent, latent, table, starts, lens, scale=0.3, chosen=chosen
        )
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
