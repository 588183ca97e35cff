"""What families built like Llama refuse, and what their files may say in several ways; numerics are
compared in tests/models."""

from typing import Any

import pytest

from pagoda.arch.registry import spec_for
from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import CheckpointError, UnsupportedModelError

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 211, "max_position_embeddings": 256,
    "torch_dtype": "bfloat16", "rope_theta": 500000.0,
}  # fmt: skip
GLM = {
    "architectures": ["Glm4MoeForCausalLM"], "n_routed_experts": 8, "num_experts_per_tok": 4,
    "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1,
    "topk_group": 1, "num_nextn_predict_layers": 1,
}  # fmt: skip
MINIMAX = {
    "architectures": ["MiniMaxM2ForCausalLM"], "num_local_experts": 8, "num_experts_per_tok": 2,
    "rotary_dim": 8, "use_qk_norm": True, "qk_norm_type": "per_layer", "scoring_func": "sigmoid",
    "use_routing_bias": True, "shared_intermediate_size": 0, "attn_type_list": [1, 1, 1, 1],
}  # fmt: skip
OLMO3 = {
    "architectures": ["Olmo3ForCausalLM"], "sliding_window": 32,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64,
        "attention_factor": 1.2,
    },
}  # fmt: skip
COMMAND = {
    "architectures": ["Cohere2ForCausalLM"], "sliding_window": 32, "sliding_window_pattern": 2,
    "logit_scale": 0.25, "layer_norm_eps": 1e-5, "use_qk_norm": False,
}  # fmt: skip
ERNIE = {
    "architectures": ["Ernie4_5_MoeForCausalLM"], "moe_num_experts": 8, "moe_k": 2,
    "moe_intermediate_size": 32,
}  # fmt: skip


def spec_of(config: dict[str, Any], **changes: Any) -> ModelSpec:
    return spec_for({**SIZES, **config, **changes}, {}, ())


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (MINIMAX, {"use_qk_norm": False}, "use_qk_norm is False.*M2"),
        (MINIMAX, {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
        (MINIMAX, {"qk_norm_type": "per_head"}, "qk_norm_type"),
        (MINIMAX, {"attn_type_list": [1, 0, 1, 1]}, "attn_type_list"),
        (MINIMAX, {"shared_intermediate_size": 64}, "shared_intermediate_size is 64"),
        (COMMAND, {"use_qk_norm": True}, "use_qk_norm.*without it"),
        (ERNIE, {"use_bias": True}, "use_bias.*without it"),
    ],
)
def test_what_is_not_published_is_refused(config, changes, message):
    spec_of(config)
    with pytest.raises(UnsupportedModelError, match=message):
        spec_of(config, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_group": 3}, "n_group is 3, which 8 experts cannot share"),
        ({"n_group": 8}, "n_group is 8, which 8 experts cannot share"),
        ({"n_group": 4}, "topk_group is 1, whose experts are fewer than 4"),
    ],
)
def test_groups_that_experts_cannot_lie_in(changes, message):
    with pytest.raises(CheckpointError, match=message):
        spec_of(GLM, **changes)


def test_layers_that_guess_are_left_over_unless_asked_for():
    spec = spec_of(GLM)
    assert len(spec.layers) == 4 and "model.layers.4.*" in spec.ignored_weights
    assert [layer.experts is None for layer in spec.layers] == [True, False, False, False]
    asked = spec.drafting()
    assert "model.layers.4.*" not in asked.ignored_weights
    assert "model.layers.4.eh_proj.weight" in {
        source for rule in asked.expanded_weights() for source in rule.sources
    }
    assert spec_of(GLM, num_nextn_predict_layers=2).draft_head is None


def test_the_part_of_a_head_that_minimax_rotates():
    assert spec_of(MINIMAX).attentions[0].rope.rotary_dim == 8


def test_of_olmo_3_only_layers_without_a_window_are_stretched():
    """As the published files say it: one section of scaling, and no kinds of layers."""
    spec = spec_of(OLMO3)
    assert [mixer.window for mixer in spec.attentions] == [32, 32, 32, None]
    assert [mixer.rope.scaling is None for mixer in spec.attentions] == [True, True, True, False]
    assert {mixer.rope.theta for mixer in spec.attentions} == {500000.0}
    assert spec.attentions[3].rope.scaling.attention_factor == 1.2
    assert spec.max_position == 512


def test_every_so_many_layers_of_command_see_all_and_are_not_rotated():
    spec = spec_of(COMMAND)
    assert [mixer.window for mixer in spec.attentions] == [32, None, 32, None]
    assert [mixer.rope is None for mixer in spec.attentions] == [False, True, False, True]
    assert spec.tie_word_embeddings


def test_a_glm_gguf_whose_router_is_another():
    sizes = {
        "block_count": 3, "embedding_length": 64, "attention.head_count": 4,
        "feed_forward_length": 96, "context_length": 256, "vocab_size": 211, "expert_count": 8,
        "attention.layer_norm_rms_epsilon": 1e-5, "expert_used_count": 2,
        "expert_feed_forward_length": 32, "rope.dimension_count": 8,
    }  # fmt: skip
    metadata = {f"glm4moe.{name}": value for name, value in sizes.items()}
    metadata["general.architecture"] = "glm4moe"
    assert len(spec_for(None, metadata, ()).layers) == 3
    with pytest.raises(UnsupportedModelError, match="not a sigmoid"):
        spec_for(None, {**metadata, "glm4moe.expert_gating_func": 1}, ())
    with pytest.raises(CheckpointError, match="block_count"):
        spec_for(None, {**metadata, "glm4moe.nextn_predict_layers": 3}, ())
