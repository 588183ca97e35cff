"""Over how many devices a model can be split, by its sizes and the blocks of its matrices."""

from math import prod

import pytest

from pagoda.arch.registry import spec_for
from pagoda.base.errors import ConfigError
from pagoda.config.engine import EngineConfig, ParallelConfig
from pagoda.planner.parallel import most_ranks
from pagoda.planner.resolve import resolve
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.formats import FORMATS
from tests.unit.arch.test_qwen3_5 import GGUF
from tests.unit.planner.test_resolve import machine

# Of 16 key heads and 32 value heads of 128, as llama.cpp orders them: two tiles of 2,048 columns.
OUT = (1024, 4096)
DOWN = (1024, 3584)


def tensors(out: str, down: str = "BF16") -> dict[str, TensorInfo]:
    shapes = {"blk.0.ssm_out.weight": (OUT, out), "blk.0.ffn_down.weight": (DOWN, down)}
    return {
        name: TensorInfo(name, shape, kind, FORMATS[kind].nbytes(prod(shape)))
        for name, (shape, kind) in shapes.items()
    }


def spec():
    return spec_for(None, {**GGUF, "qwen35.attention.head_count_kv": 1}, ["output.weight"])


@pytest.mark.parametrize(
    ("out", "down", "most"),
    [
        ("BF16", "BF16", 8),  # the attention heads
        ("Q4_0", "BF16", 8),
        ("Q4_K", "BF16", 8),  # 256 columns of each tile
        ("BF16", "Q8_0", 8),
        ("BF16", "Q4_K", 2),  # 14 blocks of 256
    ],
)
def test_blocks_are_never_cut(out, down, most):
    assert most_ranks(spec(), tensors(out, down), 16) == most


def test_what_cannot_be_split_is_said_before_anything_is_loaded():
    config = EngineConfig(parallel=ParallelConfig(4))
    message = r"ffn_down.weight has 3,584 columns in blocks of 256 \(Q4_K\), which cannot be split"
    with pytest.raises(ConfigError, match=message):
        resolve(config, spec(), tensors("Q4_K", "Q4_K"), machine())


def test_tiles_are_split_one_by_one():
    """Each of the two tiles gives 8 devices 256 columns, and 16 devices 128, half a block."""
    metadata = {**GGUF, "qwen35.attention.head_count": 16, "qwen35.attention.head_count_kv": 1}
    wide = spec_for(None, metadata, ["output.weight"])
    assert most_ranks(wide, tensors("Q8_0"), 16) == 16
    assert most_ranks(wide, tensors("Q4_K"), 16) == 8
