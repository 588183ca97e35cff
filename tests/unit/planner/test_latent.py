"""What published models with latent attention take: parameters, and bytes of KV for a token."""

import pytest

from pagoda.arch.registry import spec_for
from pagoda.core.kvcache.spec import KVLayout, attention_groups, kv_groups
from pagoda.planner.attention import choose_attention, why_not
from pagoda.planner.llama_cpp import plan_llama_cpp
from pagoda.planner.memory.tensors import parameter_count
from pagoda.planner.parallel import rank_spec
from tests.unit.planner import latent_models
from tests.unit.planner.test_attention import gpu
from tests.unit.planner.test_resolve import machine

# Parameters as the hub counts them, of V3 without its draft head; layers * 576 numbers a token.
MODELS = {
    "DeepSeek-V2-Lite": (latent_models.V2_LITE, 15_706_484_224, 27 * 576),
    "DeepSeek-V3": (latent_models.V3, 671_026_419_200, 61 * 576),
    "Kimi-K2": (latent_models.KIMI_K2, 1_026_408_232_448, 61 * 576),
    "GLM-4.7-Flash": (latent_models.GLM_FLASH, 29_943_393_920, 47 * 576),
}


def token_bytes(spec, kv_dtype: str) -> float:
    (group,) = attention_groups(kv_groups(spec, KVLayout(), kv_dtype))
    return group.block_bytes / group.block_size


@pytest.mark.parametrize("name", MODELS)
def test_published_sizes(name: str):
    config, parameters, numbers = MODELS[name]
    spec = spec_for(config, {}, ())
    assert parameter_count(spec) == parameters
    assert token_bytes(spec, "bfloat16") == 2 * numbers
    assert token_bytes(spec, "int8") == numbers // 576 * (576 + 4)
    assert token_bytes(spec, "q4_0") == numbers // 32 * 18
    # Every device of several has the whole vector: heads are dealt out, and it is of all of them.
    if name != "GLM-4.7-Flash":  # of 20 heads
        assert token_bytes(rank_spec(spec, 8), "bfloat16") == 2 * numbers


def test_draft_heads_are_one_more_layer():
    for config, parameters in (
        (latent_models.V3, 684_489_845_504),
        (latent_models.GLM_FLASH, 31_221_488_576),
    ):
        spec = spec_for(config, {}, ())
        assert parameter_count(spec.drafting()) == parameters
        layers = len(spec.layers)
        assert token_bytes(spec.drafting(), "bfloat16") == 2 * 576 * (layers + 1)


def test_yarn_raises_the_scale_of_queries_and_keys():
    """By 0.1 * mscale * ln(factor) + 1 each, and cosines and sines by nothing."""
    for config, size, raised in (
        (latent_models.V2_LITE, 192, 1.2608038),
        (latent_models.V3, 192, 1.3688879),
        (latent_models.KIMI_K2, 192, 1.3465736),
        (latent_models.GLM_FLASH, 256, 1.0),
    ):
        (mixer,) = set(spec_for(config, {}, ()).attentions)
        assert mixer.scale == pytest.approx(size**-0.5 * raised**2, rel=1e-6)
        scaling = mixer.rope.scaling
        assert scaling is None or scaling.attention_factor == 1.0


def test_torch_attends_on_a_gpu_and_says_why():
    spec = spec_for(latent_models.V2_LITE, {}, ())
    reasons = []
    choice = choose_attention(spec, "auto", "bfloat16", gpu(90), reasons)
    assert (choice.names, choice.captured) == (("torch",), False)
    (reason,) = reasons
    assert "27 layers with full attention, heads of 576, latent" in reason.why
    assert "triton: it has no latent attention, whose values are a part of its keys" in reason.why
    assert choose_attention(spec, "auto", "bfloat16", machine(), []).names == ("native",)
    (mixer,) = set(spec.attentions)
    assert why_not("torch", mixer, "bfloat16", gpu(90)) is None


def test_llama_cpp_caches_the_same_vector():
    spec = spec_for(latent_models.V2_LITE, {}, ())
    _, cache, _ = plan_llama_cpp(spec, {}, 4096)
    assert cache.bytes == 4096 * 27 * 576 * 2
