"""Native paged attention against the torch reference, on caches whose unused places are NaN."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from pagoda.kernels.ref import attention as ref
from tests.kernels.caches import poisoned
from tests.kernels.test_attention import seen_until

native = pytest.importorskip(
    "pagoda.kernels.cpu._native", reason="the native kernels are not built here"
)
from pagoda.kernels.cpu.ops import CpuOps  # noqa: E402 - behind the skip

ISAS = native.INSTRUCTION_SETS
Q4_0 = torch.uint8
# fp32 sums of up to 2000 products in another order than the reference's.
TOLERANCE = 2e-5


def cpu_ops(isa: str, threads: int = 2) -> CpuOps:
    return CpuOps(native.Native(threads, isa))


@dataclass
class Case:
    """Requests of (queries, KV length)."""

    requests: list[tuple[int, int]]
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    window: int | None = None
    sinks: torch.Tensor | None = None
    chunked: bool = False
    cap: float | None = None
    spans: tuple[tuple[int, int, int], ...] = ()
    """(request, first, end) of tokens that see each other."""
    latent: bool = False
    """Values are the keys."""

    def __post_init__(self):
        torch.manual_seed(7)
        per_request = [-(-kv_len // self.block_size) for _, kv_len in self.requests]
        num_blocks = sum(per_request) + 3
        self.k_cache, self.v_cache = poisoned(
            num_blocks, self.kv_heads, self.block_size, self.head_dim, self.dtype
        )
        if self.latent:
            self.v_cache = self.k_cache
        free = (1 + torch.randperm(num_blocks - 1)).tolist()  # block 0 is nobody's: NaN
        self.table = torch.zeros(len(self.requests), max(per_request, default=0) + 2).int()
        for row, (queries, kv_len) in enumerate(self.requests):
            # Keys before every query's window may be another request's by now: NaN too.
            seen = 0 if self.window is None else max(0, kv_len - queries - self.window + 1)
            for column in range(seen // self.block_size, per_request[row]):
                self.table[row, column] = free.pop()
            at = torch.arange(seen, kv_len)
            slots = self.table[row].long()[at // self.block_size] * self.block_size
            slots += at % self.block_size
            k, v = (torch.randn(len(at), self.kv_heads, self.head_dim) for _ in "kv")
            ref.store_kv(k, v, self.k_cache, self.v_cache, slots)
        counts = [queries for queries, _ in self.requests]
        self.starts = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
        self.lens = torch.tensor([kv_len for _, kv_len in self.requests], dtype=torch.int32)
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        rows = torch.randn(sum(counts), width) * 2  # q lies in the rows of qkv
        self.q = rows[:, : self.heads * self.head_dim].unflatten(1, (self.heads, self.head_dim))
        self.sees_until = seen_until(self.requests, self.spans) if self.spans else None

    def run(self, ops: CpuOps) -> torch.Tensor:
        return ops.paged_attention(
            self.q, self.k_cache, self.v_cache, self.table, self.starts, self.lens,
            scale=self.head_dim**-0.5, window=self.window, chunked=self.chunked, sinks=self.sinks,
            cap=self.cap, sees_until=self.sees_until,
        )  # fmt: skip

    def check(self, ops: CpuOps) -> None:
        expected = ref.paged_attention(
            self.q.contiguous(), self.k_cache, self.v_cache, self.table, self.starts, self.lens,
            scale=self.head_dim**-0.5, window=self.window, chunked=self.chunked, sinks=self.sinks,
            cap=self.cap, sees_until=self.sees_until,
        )  # fmt: skip
        torch.testing.assert_close(self.run(ops), expected, rtol=TOLERANCE, atol=TOLERANCE)


MIXES = {
    "first token": [(1, 1)],
    "one decode": [(1, 1000)],
    "decodes": [(1, 64), (1, 65), (1, 1), (1, 255), (1, 256), (1, 257), (1, 30)],
    "prefill": [(150, 150)],
    "chunk": [(33, 700)],
    "mixed": [(1, 530), (70, 70), (1, 3), (4, 19), (9, 300), (2, 2)],
    "idle requests": [(0, 5), (3, 7), (0, 0), (1, 9), (0, 0)],
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("window", [None, 1, 37, 300])
def test_equals_reference(isa, mix, window):
    Case(MIXES[mix], window=window).check(cpu_ops(isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("window", [1, 37, 300])
def test_chunks(isa, mix, window):
    Case(MIXES[mix], window=window, chunked=True).check(cpu_ops(isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8, Q4_0])
@pytest.mark.parametrize("mix", ["decodes", "mixed", "chunk"])
@pytest.mark.parametrize(
    ("heads", "head_dim", "block_size"), [(16, 64, 16), (130, 48, 16), (4, 26, 16), (3, 72, 5)]
)
def test_values_that_are_the_keys(isa, dtype, mix, heads, head_dim, block_size):
    case = Case(MIXES[mix], heads, 1, head_dim, block_size, dtype, latent=True)
    case.check(cpu_ops(isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, Q4_0])
@pytest.mark.parametrize("cap", [0.5, 50.0])
def test_capped_logits(isa, dtype, cap):
    Case(MIXES["mixed"], dtype=dtype, window=37, cap=cap).check(cpu_ops(isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, Q4_0])
@pytest.mark.parametrize("mix", ["decodes", "mixed"])
@pytest.mark.parametrize("window", [None, 37])
def test_small_caches(isa, dtype, mix, window):
    Case(MIXES[mix], dtype=dtype, window=window).check(cpu_ops(isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, Q4_0])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(4, 4, 8), (9, 3, 64), (8, 1, 24), (5, 1, 80), (14, 2, 128), (71, 1, 64), (2, 1, 256),
     (3, 3, 6), (4, 2, 34)],
)  # fmt: skip
def test_head_layouts(isa, dtype, heads, kv_heads, head_dim):
    case = Case(MIXES["mixed"], heads, kv_heads, head_dim, dtype=dtype)
    case.check(cpu_ops(isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, Q4_0])
@pytest.mark.parametrize("block_size", [1, 3, 100])
def test_block_sizes(isa, dtype, block_size):
    Case(MIXES["mixed"], block_size=block_size, window=90, dtype=dtype).check(cpu_ops(isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, Q4_0])
@pytest.mark.parametrize("mix", ["first token", "one decode", "mixed", "idle requests"])
@pytest.mark.parametrize("window", [None, 37])
def test_sinks(isa, dtype, mix, window):
    """Some far below all scores, some far above."""
    sinks = torch.tensor([-200.0, -1.0, 0.0, 3.0, 20.0, 200.0])
    Case(MIXES[mix], dtype=dtype, window=window, sinks=sinks).check(cpu_ops(isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, Q4_0])
@pytest.mark.parametrize("window", [None, 37, 200])
def test_spans_that_see_each_other(isa, dtype, window):
    """Across tiles of 64 keys and splits of 256, and cut by the request's end."""
    requests = [(1, 530), (300, 310), (70, 70), (0, 4), (90, 400)]
    spans = ((0, 500, 529), (1, 12, 300), (2, 0, 65), (4, 340, 341), (4, 350, 999))
    case = Case(requests, dtype=dtype, window=window, spans=spans)
    case.check(cpu_ops(isa))
    assert torch.equal(case.run(cpu_ops(isa, 3)), case.run(cpu_ops(isa, 1)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, Q4_0])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_no_bit(isa, dtype, threads):
    for mix in ("one decode", "mixed", "chunk"):
        case = Case(MIXES[mix], dtype=dtype)
        assert torch.equal(case.run(cpu_ops(isa, threads)), case.run(cpu_ops(isa, 1)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, Q4_0])
@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (2, 2), (8, 1)])
def test_chunks_and_neighbours_change_no_bit(isa, window, dtype, heads, kv_heads):
    length = 600
    case = Case([(length, length)], heads, kv_heads, 64, dtype=dtype, window=window)
    whole, ops = case.run(cpu_ops(isa, 3)), cpu_ops(isa, 2)
    queries = case.q
    # A neighbour over the same cache before each chunk, and chunks of all kinds.
    for begin, end in ((0, 1), (1, 64), (64, 257), (257, 597), (597, 598), (598, 599), (599, 600)):
        case.q = torch.cat((queries[500:540], queries[begin:end]))
        case.table = case.table[:1].repeat(2, 1)
        case.starts = torch.tensor([0, 40, 40 + end - begin], dtype=torch.int32)
        case.lens = torch.tensor([540, end], dtype=torch.int32)
        out = case.run(ops)
        assert torch.equal(out[:40], whole[500:540])
        assert torch.equal(out[40:], whole[begin:end])


class _LittleScratch:
    """Native kernels that are told of no long context, and so make no room for its splits."""

    def __init__(self, kernels):
        self._kernels = kernels

    def paged_attention(self, *args):
        # q, its rows, stride and heads; the cache; the table and its stride; starts, lengths and
        # how many there are.
        *first, max_kv_len = args[:11]
        assert max_kv_len > 0
        self._kernels.paged_attention(*first, 0, *args[11:])


@pytest.mark.parametrize("isa", ISAS)
def test_little_scratch_changes_no_bit(isa, monkeypatch):
    case = Case([(1, 3000)], dtype=torch.bfloat16)
    expected = case.run(cpu_ops(isa))
    ops = cpu_ops(isa)
    monkeypatch.setattr(ops, "_native", _LittleScratch(ops._native))
    assert torch.equal(case.run(ops), expected)


@pytest.mark.parametrize("isa", ISAS)
def test_rows_behind_the_last_request_are_zero(isa):
    case = Case([(3, 40), (1, 90)])
    case.q = torch.cat((case.q, torch.full((2, 6, 32), torch.nan)))
    out = case.run(cpu_ops(isa))
    assert torch.equal(out[4:], torch.zeros(2, 6, 32))
    assert out[:4].isfinite().all()


@pytest.mark.parametrize("isa", ISAS)
def test_requests_behind_the_rows_are_not_looked_at(isa):
    case = Case([(3, 40), (1, 90)])
    expected = case.run(cpu_ops(isa))
    case.table = torch.cat((case.table, torch.full_like(case.table, 1 << 30)))
    case.starts = torch.cat((case.starts, torch.full((2,), 4).int()))
    case.lens = torch.cat((case.lens, torch.full((2,), 1 << 30).int()))
    assert torch.equal(case.run(cpu_ops(isa)), expected)


@pytest.mark.parametrize("isa", ISAS)
def test_extreme_scores(isa):
    """Scores of +-1e4, and a NaN query, which stays in its own row."""
    case = Case([(1, 200), (2, 300)])
    case.q = case.q * 3000
    case.check(cpu_ops(isa))
    case.q[1, 0] = torch.nan
    out = case.run(cpu_ops(isa))
    assert out[1, 0].isnan().all()
    assert out[0].isfinite().all() and out[2].isfinite().all()


@pytest.mark.parametrize("isa", ISAS)
def test_no_tokens(isa):
    assert Case([]).run(cpu_ops(isa)).shape == (0, 6, 32)


def test_wrong_arguments_are_named():
    case = Case([(1, 9)])
    ops = cpu_ops("")
    case.table = case.table.long()
    with pytest.raises(ValueError, match="block_table is torch.int64"):
        case.run(ops)
    case = Case([(1, 9)])
    case.v_cache = case.v_cache.bfloat16()
    with pytest.raises(ValueError, match="v_cache is torch.bfloat16"):
        case.run(ops)
    case = Case([(1, 9)], heads=5, kv_heads=2)
    with pytest.raises(ValueError, match="5 heads cannot share 2 KV heads"):
        case.run(ops)
