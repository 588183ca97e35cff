"""Linear layers that keep the checkpoint's bits give what the decoded weights give."""

import pytest
import torch

from pagoda.kernels import cpu, ops
from pagoda.quant.base import ShardSource
from pagoda.quant.packed import PackedLinear
from pagoda.quant.plain import PlainLinear
from pagoda.quant.select import linear_format
from pagoda.weights.formats import FORMATS
from tests.kernels.packed import random_raw, rounded

COLUMNS = 512
DENSEST = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """The process's kernels are chosen anew."""
    torch.manual_seed(5)
    monkeypatch.setattr(cpu, "_cached", {})


def _loaded(storages: dict[str, int]) -> tuple[PackedLinear, list[torch.Tensor]]:
    layer = PackedLinear()
    sizes, kinds = tuple(storages.values()), tuple(storages)
    layer.create(sizes, tuple(kind.split()[0] for kind in kinds), COLUMNS, torch.bfloat16, "cpu")
    weights = []
    for shard in reversed(range(len(sizes))):
        storage = kinds[shard].split()[0]
        raw = random_raw(storage, sizes[shard], COLUMNS, seed=shard)
        layer.load(shard, ShardSource(storage, sizes[shard], COLUMNS, lambda raw=raw: raw))
        weights.insert(0, ops.dequantize(raw, storage))
    layer.finalize()
    return layer, weights


def test_merged_shards():
    layer, weights = _loaded({"Q4_1 q": 24, "Q4_1 k": 9, "Q6_K v": 9, "Q4_1 o": 16})
    x, bias = torch.randn(6, COLUMNS), torch.randn(58)
    seen = rounded(x, "Q4_1", cpu.native().isa)  # and Q6_K alike
    expected = (seen @ torch.cat(weights).double().t()).float() + bias
    # fp32 rounding of sums whose terms' magnitudes add up to about a thousand.
    torch.testing.assert_close(layer.apply(x, bias), expected, rtol=1e-5, atol=3e-4)


def test_formats_without_a_packed_form_become_bf16():
    layer, (weight,) = _loaded({"NVFP4": 40})
    x = torch.randn(3, COLUMNS).bfloat16()
    expected = x.double() @ weight.bfloat16().double().t()
    out = layer.apply(x, out_dtype=torch.float32)
    torch.testing.assert_close(out, expected.float(), rtol=1e-5, atol=1e-3)
    assert layer.nbytes == 48 * COLUMNS * 2  # whole panels of 16 rows


@pytest.mark.parametrize("storage", DENSEST)
def test_the_densest_formats_stay_as_small_as_in_the_file(storage):
    layer, (weight,) = _loaded({storage: 48})
    assert layer.nbytes == FORMATS[storage].nbytes(48 * COLUMNS)
    x = torch.randn(3, COLUMNS)
    expected = rounded(x, storage, cpu.native().isa) @ weight.double().t()
    torch.testing.assert_close(layer.apply(x), expected.float(), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dtypes(dtype):
    layer, (weight,) = _loaded({"Q8_0": 16})
    x = torch.randn(5, COLUMNS).to(dtype)
    out = layer.apply(x)
    assert out.dtype == dtype
    expected = (rounded(x, "Q8_0", cpu.native().isa) @ weight.double().t()).to(dtype)
    torch.testing.assert_close(out, expected, rtol=1e-2, atol=1e-3)


def test_rows():
    layer, (weight,) = _loaded({"Q4_K": 50})
    index = torch.tensor([49, 0, 7, 7])
    assert torch.equal(layer.rows(index), weight[index].bfloat16())


def test_who_gets_packed_weights(monkeypatch):
    assert isinstance(linear_format(("Q4_1", "BF16"), "cpu", packed=True), PackedLinear)
    assert isinstance(linear_format(("BF16",), "cpu", packed=False), PlainLinear)
    assert ops.can_pack("cpu")
    monkeypatch.setattr(cpu, "_cached", {})
    monkeypatch.setenv("PAGODA_CPU_ISA", "none")
    assert not ops.can_pack("cpu")


def test_choice_of_instruction_set(monkeypatch):
    monkeypatch.setenv("PAGODA_CPU_ISA", "generic")
    assert cpu.native().isa == "generic"
    cpu.set_num_threads(3)
    assert (cpu.native().isa, cpu.native().num_threads) == ("generic", 3)
    monkeypatch.setattr(cpu, "_cached", {})
    monkeypatch.setenv("PAGODA_CPU_ISA", "avx1024")
    with pytest.raises(cpu.ConfigError, match="avx1024.*generic or none"):
        cpu.native()
