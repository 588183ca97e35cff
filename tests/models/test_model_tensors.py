"""The planner's list of parameters is what transformers counts, what the weight rules name and
what a rank of several holds."""

from math import prod

import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.layers.context import Parallel
from pagoda.models.loader import build_model
from pagoda.planner.memory.assumed import Dummy
from pagoda.planner.memory.plan import position_bytes
from pagoda.planner.memory.tensors import model_tensors
from tests.models import tiny

CHANGES = {
    "gemma2": tiny.GEMMA2, "gemma3": tiny.GEMMA3, "gemma3_vision": tiny.GEMMA3,
    "gemma3n": tiny.GEMMA3N, "gemma4": tiny.GEMMA4_MOE, "gemma4_e": tiny.GEMMA4_E,
    "gemma4_vision": tiny.GEMMA4, "gpt_oss": tiny.GPT_OSS,
    "llama4": tiny.LLAMA4, "ministral3": tiny.MINISTRAL3, "mixtral": tiny.MIXTRAL,
    "qwen3_5": tiny.QWEN3_5, "qwen3_5_moe": tiny.QWEN3_5_MOE, "qwen3_moe": tiny.QWEN3_MOE,
    "qwen3_next": tiny.QWEN3_5_MOE, "olmo3": tiny.OLMO3, "cohere2": tiny.COHERE2,
    "granite_moe": tiny.GRANITE_MOE,
    "granite_moe_shared": {**tiny.GRANITE_MOE, "shared_intermediate_size": 48},
    "hunyuan": tiny.HUNYUAN, "hunyuan_moe": tiny.HUNYUAN_MOE,
    "minimax_m2": tiny.MINIMAX_M2, "ernie4_5": {"pad_token_id": 0},
    "ernie4_5_moe": tiny.ERNIE4_5_MOE,
    "deepseek_v2": tiny.DEEPSEEK_V2, "deepseek_v3": tiny.DEEPSEEK_V3,
    "deepseek_v32": tiny.DEEPSEEK_V32, "glm_moe_dsa": tiny.GLM_MOE_DSA,
    "glm4_moe_lite": tiny.GLM4_MOE_LITE, "youtu": tiny.LATENT,
    "glm4_moe": tiny.GLM4_MOE, "glm4": {"head_dim": 16},
    "lfm2": {**tiny.LFM2, "conv_bias": True}, "lfm2_moe": tiny.LFM2_MOE,
    "bamba": tiny.BAMBA, "nemotron_h": tiny.NEMOTRON_H_MIXED,
}  # fmt: skip


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", sorted(set(tiny.FAMILIES) - {"granite4"}))
def test_parameters_are_those_of_transformers(family: str, tied: bool):
    model = tiny.make(family, **{**CHANGES.get(family, {}), "tie_word_embeddings": tied})
    spec = _spec(model)
    found = model_tensors(spec)
    state = model.state_dict()
    buffers = sum(x.numel() for name, x in model.named_buffers() if name in state)
    assert sum(tensor.elements for tensor in found) == model.num_parameters() + buffers
    names = [tensor.name for tensor in found]
    assert sorted(names) == sorted(rule.param for rule in spec.expanded_weights())


@pytest.mark.parametrize("experts", [0, 6])
@pytest.mark.parametrize("size", [1, 2])
def test_a_hybrid_of_mamba_holds_what_is_predicted(experts: int, size: int):
    changes = {"num_local_experts": experts, "mamba_n_groups": 2, "vocab_size": 210}
    model = tiny.make("granite4", **{**tiny.GRANITE4_HYBRID, **changes})
    spec = _spec(model)
    found = model_tensors(spec)
    assert sum(tensor.elements for tensor in found) == model.num_parameters()
    assert sorted(x.name for x in found) == sorted(x.param for x in spec.expanded_weights())
    rank = build_model(spec, Dummy(), dtype=torch.float32, device="cpu", parallel=Parallel(0, size))
    shapes = [tensor.rank_shape(size, whole_experts=True) for tensor in found]
    assert rank.nbytes == 4 * sum(map(prod, shapes))


@pytest.mark.parametrize(
    "family", ["llama", "gemma3", "gemma4", "llama4", "ministral3", "gpt_oss", "olmo3"]
)
def test_tables_by_position_take_what_is_predicted(family: str):
    spec = _spec(tiny.make(family, **CHANGES.get(family, {})))
    model = build_model(spec, Dummy(), dtype=torch.float32, device="cpu")
    model.reserve(300)
    rotary = model.context.rotary
    held = [table.upto(300).nbytes for table in rotary.tables.values()]
    held += [rotary.scales_of(scaling).upto(300).nbytes for scaling in _scalings(spec)]
    assert held and sum(held) == 300 * position_bytes(spec)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "family",
    [
        "llama",
        "qwen3_moe",
        "gpt_oss",
        "qwen3_5",
        "gemma3",
        "gemma4",
        "gemma4_e",
        "qwen3_5_moe",
        "llama4",
        "olmo3",
        "cohere2",
        "deepseek_v2",
        "deepseek_v3",
        "glm_moe_dsa",
        "lfm2",
        "lfm2_moe",
        "nemotron_h",
    ],
)
def test_a_rank_holds_what_is_predicted(family: str, size: int):
    model = tiny.make(family, **{**CHANGES.get(family, {}), "vocab_size": 210})
    spec = _spec(model)
    rank = build_model(
        spec,
        Dummy(),
        dtype=torch.float32,
        device="cpu",
        parallel=Parallel(0, size),
    )
    shapes = [tensor.rank_shape(size, whole_experts=True) for tensor in model_tensors(spec)]
    assert rank.nbytes == 4 * sum(map(prod, shapes))


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "family", ["qwen3_5", "qwen3_5_moe", "qwen3_next", "glm4_moe", "deepseek_v3", "deepseek_v32"]
)
def test_a_rank_holds_what_is_predicted_of_a_draft_head(family: str, size: int):
    model = tiny.make(family, **{**CHANGES[family], "vocab_size": 210})
    model.config.num_nextn_predict_layers = 1
    spec = _spec(model).drafting()
    rank = build_model(spec, Dummy(), dtype=torch.float32, device="cpu", parallel=Parallel(0, size))
    found = model_tensors(spec)
    names = sorted(tensor.name for tensor in found)
    assert names == sorted(rule.param for rule in spec.expanded_weights())
    shapes = [tensor.rank_shape(size, whole_experts=True) for tensor in found]
    assert rank.nbytes == 4 * sum(map(prod, shapes))


def test_slices_of_experts_and_repeated_heads():
    spec = _spec(tiny.make("gpt_oss", **tiny.GPT_OSS))
    shapes = {tensor.name: tensor.rank_shape(4) for tensor in model_tensors(spec)}
    assert shapes["layers.0.mlp.gate_up.weight"] == (6, 2 * 64 // 4, 64)
    assert shapes["layers.0.mlp.down.weight"] == (6, 64, 64 // 4)
    assert shapes["layers.0.attention.qkv.weight"] == ((1 + 1 + 1) * 16, 64)  # 2 KV heads
    assert shapes["layers.0.attention.output.weight"] == (64, 16)
    assert shapes["layers.0.attention_norm.weight"] == (64,)


def _scalings(spec):
    return {mixer.query_scaling for mixer in spec.attentions if mixer.query_scaling is not None}


def _spec(model):
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    return spec_for(config, {}, ())
