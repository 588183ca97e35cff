"""Norms, rotation and the store of K and V against the torch reference."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
import triton
import triton.language as tl

from pagoda.kernels.ref import attention as ref
from pagoda.kernels.ref.kv_cache import FP8, KVScales, decode, encode
from pagoda.kernels.triton import kv_cache
from pagoda.kernels.triton.products import fp8
from tests.kernels.triton.paged import poisoned

HALVES = (torch.float16, torch.bfloat16)
# Of half precision also for what the reference rounds between norm and rotation.
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.int8: 6e-2}
TOKENS, HEADS, KV_HEADS, BLOCK_SIZE = 7, 3, 2, 4


def close(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    tolerance = TOLERANCE.get(dtype, 2e-6)
    torch.testing.assert_close(
        got.float(), expected.float(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


class Step:
    """Tokens of a step, in slots all over a cache."""

    def __init__(self, dim: int, dtype: torch.dtype, cache_dtype: torch.dtype):
        generator = torch.Generator().manual_seed(dim)
        self.dim, self.cache_dtype = dim, cache_dtype
        rows = torch.randn(TOKENS, (HEADS + 2 * KV_HEADS) * dim + 3, generator=generator)
        self.qkv = rows.to(dtype)[:, :-3]
        self.positions = torch.randperm(50, generator=generator)[:TOKENS]
        self.slots = torch.randperm(8 * BLOCK_SIZE, generator=generator)[:TOKENS]
        self.table = torch.randn(50, dim, generator=generator)
        self.weights = torch.rand(2, dim, generator=generator) + 0.5

    def cache(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        return poisoned(8, KV_HEADS, BLOCK_SIZE, self.dim, dtype)

    def check(self, device: str, cos_sin: torch.Tensor | None, norms=None) -> None:
        k_ref, v_ref = self.cache(self.cache_dtype)
        expected = ref.rotary_store(
            self.qkv.clone(), self.positions, cos_sin, k_ref, v_ref, self.slots, norms, None, False
        )
        k, v = (cache.to(device) for cache in self.cache(self.cache_dtype))
        on_device = None if norms is None else (*(w.to(device) for w in norms[:2]), *norms[2:])
        q = kv_cache.rotary_store(
            self.qkv.to(device), self.positions.to(device),
            None if cos_sin is None else cos_sin.to(device), k, v, self.slots.to(device), on_device,
        )  # fmt: skip
        assert q.is_contiguous()
        close(q.cpu(), expected, self.qkv.dtype)
        for got, wanted in ((k.cpu(), k_ref), (v.cpu(), v_ref)):
            close(decode(got, torch.float32), decode(wanted, torch.float32), self._written)

    @property
    def _written(self) -> torch.dtype:
        """What bounds the error of caches: an int8 code may be the next one after other sums."""
        if self.cache_dtype == torch.int8:
            return self.qkv.dtype if self.qkv.dtype == torch.float32 else torch.int8
        return max(self.cache_dtype, self.qkv.dtype, key=lambda dtype: TOLERANCE.get(dtype, 0))


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("dim", [16, 80])
def test_rotation_and_norms(device, dtype, dim):
    step = Step(dim, dtype, dtype)
    for rotary_dim in (dim, dim // 2):
        step.check(
            device,
            step.table[:, :rotary_dim].contiguous(),
            (*step.weights, 1e-6, False),
        )
    step.check(device, step.table)
    step.check(device, None)


@pytest.mark.parametrize("cache_dtype", [torch.float32, *HALVES, torch.int8])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_caches(device, dtype, cache_dtype):
    step = Step(24, dtype, cache_dtype)
    step.check(device, step.table)


@pytest.mark.parametrize("cache_dtype", FP8)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_caches_of_8_bit_floats(device, dtype, cache_dtype):
    # Unrotated: a number between two of these may be rounded to either after other sums.
    Step(24, dtype, cache_dtype).check(device, None)


def test_scales_of_8_bit_floats(device):
    """Numbers of 1000 times the size are stored as closely as others; with 1 they saturate."""
    step = Step(24, torch.float32, torch.float8_e4m3fn)
    heads = step.qkv.unflatten(1, (-1, 24))
    heads[:, HEADS] *= 1000
    heads[:, HEADS + KV_HEADS + 1] *= 1000
    scales = KVScales(torch.tensor([8.0, 0.01]), torch.tensor([0.01, 8.0]))
    for given in (scales, None):
        k, v = (cache.to(device) for cache in step.cache(torch.float8_e4m3fn))
        kv_cache.rotary_store(
            step.qkv.to(device), step.positions.to(device), None, k, v, step.slots.to(device),
            kv_scales=None if given is None else KVScales(*(x.to(device) for x in given)),
        )  # fmt: skip
        blocks, at = step.slots // BLOCK_SIZE, step.slots % BLOCK_SIZE
        for cache, own, first in ((k, scales.k, HEADS), (v, scales.v, HEADS + KV_HEADS)):
            read = cache.cpu().float()[blocks, :, at]
            wanted = heads[:, first : first + KV_HEADS]
            if given is None:
                assert read.abs().max() == 448
            else:
                torch.testing.assert_close(read * own[:, None], wanted, rtol=0.07, atol=0.02)


def test_an_int8_row_with_infinity_reads_as_nan(device):
    step = Step(16, torch.float32, torch.int8)
    step.qkv[0, HEADS * 16] = torch.inf
    step.qkv[1, (HEADS + KV_HEADS) * 16 + 3] = torch.nan
    step.qkv[2] = 0
    step.qkv[3] = 1e-42
    k, v = (cache.to(device) for cache in step.cache(torch.int8))
    kv_cache.rotary_store(
        step.qkv.to(device), step.positions.to(device), None, k, v, step.slots.to(device)
    )
    blocks, at = step.slots // BLOCK_SIZE, step.slots % BLOCK_SIZE
    keys = decode(k.cpu(), torch.float32)[blocks, :, at]
    values = decode(v.cpu(), torch.float32)[blocks, :, at]
    assert keys[0, 0].isnan().all() and keys[0, 1].isfinite().all()
    assert values[1, 0].isnan().all() and values[0].isfinite().all()
    assert keys[2:4].eq(0).all() and values[2:4].eq(0).all()


@pytest.mark.parametrize("norm_values", [False, True])
def test_values_are_keys(device, norm_values):
    """Values are keys as they came, normalized without weights or not."""
    step, dim = Step(16, torch.float32, torch.float32), 16
    k_ref, v_ref = step.cache(torch.float32)
    qk = step.qkv[:, : (HEADS + KV_HEADS) * dim]
    plain = qk[:, HEADS * dim :].unflatten(1, (KV_HEADS, dim))
    rms = (plain.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    values = plain / rms if norm_values else plain
    ref.rotary_store(
        torch.cat((qk, values.flatten(1)), 1), step.positions, step.table, k_ref, v_ref,
        step.slots, (*step.weights, 1e-6, False), None, False,
    )  # fmt: skip
    k, v = (cache.to(device) for cache in step.cache(torch.float32))
    kv_cache.rotary_store(
        qk.to(device), step.positions.to(device), step.table.to(device), k, v,
        step.slots.to(device), (*step.weights.to(device), 1e-6, norm_values),
        values_are_keys=True,
    )  # fmt: skip
    close(k.cpu(), k_ref, torch.float32)
    close(v.cpu(), v_ref, torch.float32)


def test_query_scales(device):
    step = Step(16, torch.float32, torch.float32)
    k, v = (cache.to(device) for cache in step.cache(torch.float32))
    scales = torch.linspace(1, 2, 50)
    on_device = (x.to(device) for x in (step.qkv, step.positions, step.table, k, v, step.slots))
    q = kv_cache.rotary_store(*on_device, q_scales=scales.to(device))
    expected = ref.rotary_store(
        step.qkv, step.positions, step.table, *step.cache(torch.float32), step.slots, None, None,
        False,
    )  # fmt: skip
    close(q.cpu(), expected * scales[step.positions, None, None], torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("normed", [False, True])
def test_queries_alone(device, dtype, normed):
    step = Step(24, dtype, dtype)
    q, table = step.qkv[:, : HEADS * 24], step.table[:, :16].contiguous() if normed else None
    norm = (step.weights[0], 1e-3) if normed else None
    scales = torch.linspace(1, 2, 50) if normed else None
    expected = ref.rotate(q.clone(), step.positions, table, 24, norm, scales)
    found = kv_cache.rotate(
        q.to(device), step.positions.to(device), None if table is None else table.to(device), 24,
        None if norm is None else (norm[0].to(device), norm[1]),
        None if scales is None else scales.to(device),
    )  # fmt: skip
    assert found.is_contiguous()
    close(found.cpu(), expected, dtype)


@triton.jit
def _encode(codes, x, MANTISSA: tl.constexpr):
    at = tl.arange(0, 4096)
    tl.store(codes + at, fp8.encode_fp8(tl.load(x + at), MANTISSA))


@triton.jit
def _decode(x, codes, MANTISSA: tl.constexpr):
    at = tl.arange(0, 256)
    tl.store(x + at, fp8.decode_fp8(tl.load(codes + at), MANTISSA).to(tl.float32))


@pytest.mark.parametrize(("dtype", "mantissa"), [(FP8[0], 3), (FP8[1], 2)])
def test_every_8_bit_float(device, dtype, mantissa):
    codes = torch.arange(256, dtype=torch.uint8)
    read = torch.full((256,), -7.0, device=device)
    _decode[(1,)](read, codes.to(device), MANTISSA=mantissa)
    numbers = codes.view(dtype).float()
    torch.testing.assert_close(read.cpu(), numbers, rtol=0, atol=0, equal_nan=True)
    largest = torch.finfo(dtype).max
    finite = numbers[numbers.isfinite()].sort().values
    between = (finite[1:] + finite[:-1]) / 2  # ties
    # Past the largest number, past where it would be rounded to the next, and further.
    beyond = torch.tensor([largest * 1.03, largest * 1.1, 1e9, 3e38, torch.inf])
    generator = torch.Generator().manual_seed(3)
    wide = torch.randn(4096, generator=generator) * torch.logspace(-8, 2, 4096)
    x = torch.cat((numbers, beyond, -beyond, between, wide))[:4096]
    written = torch.zeros(4096, dtype=torch.uint8, device=device)
    _encode[(1,)](written, x.to(device), MANTISSA=mantissa)
    got = written.cpu().view(dtype).float()
    # torch's own conversion of what fits.
    expected = x.clamp(-largest, largest).to(dtype).float()
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(encode(x, dtype).float(), expected, rtol=0, atol=0, equal_nan=True)
