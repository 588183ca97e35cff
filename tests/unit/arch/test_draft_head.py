"""What specs say of draft heads (MTP), and what the planner counts of them; numerics are compared
in tests/models."""

import pytest

from pagoda.arch.registry import spec_for
from pagoda.arch.spec import AttentionSpec
from pagoda.base.errors import CheckpointError, ConfigError
from pagoda.base.facts import DeviceFacts
from pagoda.config.engine import EngineConfig
from pagoda.core.kvcache.spec import KVLayout, attention_groups, kv_groups
from pagoda.planner.memory.assumed import config_tensors
from pagoda.planner.memory.tensors import parameter_count
from pagoda.planner.parallel import rank_spec
from pagoda.planner.resolve import resolve
from tests.unit.arch.test_qwen3_5 import GGUF, QWEN_27B
from tests.unit.planner.published import QWEN36_27B

# As in the header of the published Qwen3.5-27B.
TENSORS = {
    "mtp.fc.weight", "mtp.layers.0.input_layernorm.weight", "mtp.layers.0.mlp.down_proj.weight",
    "mtp.layers.0.mlp.gate_proj.weight", "mtp.layers.0.mlp.up_proj.weight",
    "mtp.layers.0.post_attention_layernorm.weight", "mtp.layers.0.self_attn.k_norm.weight",
    "mtp.layers.0.self_attn.k_proj.weight", "mtp.layers.0.self_attn.o_proj.weight",
    "mtp.layers.0.self_attn.q_norm.weight", "mtp.layers.0.self_attn.q_proj.weight",
    "mtp.layers.0.self_attn.v_proj.weight", "mtp.norm.weight", "mtp.pre_fc_norm_embedding.weight",
    "mtp.pre_fc_norm_hidden.weight",
}  # fmt: skip
PARAMETERS = 424_699_392  # of these
# As llama.cpp's src/models/qwen35.cpp asks for them.
BLOCK = {
    f"blk.8.{name}.weight"
    for name in (
        "attn_norm", "post_attention_norm", "attn_q", "attn_k", "attn_v", "attn_output",
        "attn_q_norm", "attn_k_norm", "ffn_gate", "ffn_up", "ffn_down", "nextn.eh_proj",
        "nextn.enorm", "nextn.hnorm",
    )
}  # fmt: skip


def _sources(spec) -> set[str]:
    return {source for rule in spec.expanded_weights() for source in rule.sources}


def _config(**text):
    return {**QWEN_27B, "text_config": {**QWEN_27B["text_config"], **text}}


def test_the_published_tensors_are_read_if_asked_for():
    spec = spec_for(QWEN_27B, {}, ())
    assert not _sources(spec) & TENSORS
    drafting = spec.drafting()
    assert _sources(drafting) - _sources(spec) == TENSORS
    assert parameter_count(drafting) - parameter_count(spec) == PARAMETERS


def test_left_over_tensors_of_the_head_are_so_on_purpose_only_where_it_is_not_loaded():
    spec = spec_for(QWEN_27B, {}, ())
    assert "mtp.*" in spec.ignored_weights
    assert "mtp.*" not in spec.drafting().ignored_weights


@pytest.mark.parametrize("config", [QWEN_27B, QWEN36_27B])
def test_its_layer_is_one_of_attention_with_images_in_mind(config):
    spec = spec_for(config, {}, ())
    layer = spec.draft_head.layer
    assert layer == spec.layers[63]
    assert (layer.mixer.rope.axes is not None) == ("vision_config" in config)


def test_a_table_of_its_own():
    spec = spec_for(_config(mtp_use_dedicated_embeddings=True), {}, ()).drafting()
    assert "mtp.embed_tokens.weight" in _sources(spec)
    assert spec.draft_head.own_embedding and not spec.draft_head.own_output


@pytest.mark.parametrize("count", [0, 2])
def test_none_of_or_several_layers_are_no_head(count):
    spec = spec_for(_config(mtp_num_hidden_layers=count), {}, ())
    with pytest.raises(ConfigError, match=r"no draft head.*speculate by another method"):
        spec.drafting()


def test_a_checkpoint_says_whether_it_has_the_head():
    """Qwen3-Next's config.json does not; that of many a fine-tuned one says so in vain."""
    untold = _config(mtp_num_hidden_layers=None)
    assert spec_for(untold, {}, ["lm_head.weight", "mtp.norm.weight"]).draft_head is not None
    assert spec_for(QWEN_27B, {}, ["lm_head.weight"]).draft_head is None
    with pytest.raises(CheckpointError, match="mtp_num_hidden_layers must be between"):
        spec_for(_config(mtp_num_hidden_layers=-1), {}, ())


def test_gguf():
    names = {"output.weight", *BLOCK, "blk.8.nextn.shared_head_norm.weight"}
    spec = spec_for(None, GGUF, names)
    assert spec.draft_head.layer == spec.layers[7]
    own = _sources(spec.drafting()) - _sources(spec)
    assert own == BLOCK | {"blk.8.nextn.shared_head_norm.weight"}
    assert not (spec.draft_head.own_embedding or spec.draft_head.own_output)
    assert not any(pattern.startswith("blk.") for pattern in spec.drafting().ignored_weights)


def test_gguf_of_optional_parts():
    tables = {"blk.8.nextn.embed_tokens.weight", "blk.8.nextn.shared_head_head.weight"}
    spec = spec_for(None, GGUF, {"output.weight", *BLOCK, *tables})
    assert spec.draft_head.own_embedding and spec.draft_head.own_output
    rules = {rule.param: rule.sources for rule in spec.draft_head.weights}
    assert rules["draft_head.norm.weight"] == ("output_norm.weight",), "the model's"
    assert tables <= _sources(spec.drafting())


@pytest.mark.parametrize(
    ("metadata", "names"),
    [
        (GGUF | {"qwen35.nextn_predict_layers": 0, "qwen35.block_count": 8}, {"output.weight"}),
        (GGUF | {"qwen35.nextn_predict_layers": 2, "qwen35.block_count": 10}, BLOCK),
        (GGUF, {"output.weight"}),
    ],
)
def test_gguf_without_a_head(metadata, names):
    assert spec_for(None, metadata, names).draft_head is None


def test_its_cache_is_one_more_layer_of_the_attention_group():
    spec = spec_for(QWEN_27B, {}, ())
    (plain,), (drafting,) = (
        attention_groups(kv_groups(of, KVLayout())) for of in (spec, spec.drafting())
    )
    assert drafting.layers == (*plain.layers, 64)
    assert drafting.block_bytes * 16 == plain.block_bytes * 17


def test_a_rank_has_its_share_of_the_layer():
    spec = spec_for(QWEN_27B, {}, ()).drafting()
    layer = rank_spec(spec, 2).draft_head.layer
    assert isinstance(layer.mixer, AttentionSpec)
    assert (layer.mixer.num_heads, layer.mixer.num_kv_heads) == (12, 2)
    assert layer.mlp.intermediate_size == 17408 // 2


def test_the_plan_counts_weights_and_cache():
    spec = spec_for(QWEN_27B, {}, ())
    facts = DeviceFacts("cpu", 120 << 30, 120 << 30, 8)
    plain, drafting = (
        resolve(EngineConfig(), of, config_tensors(of, QWEN_27B), facts).plan
        for of in (spec, spec.drafting())
    )
    assert drafting.weights - plain.weights == 2 * PARAMETERS
    assert drafting.kv_bytes_per_token * 16 == plain.kv_bytes_per_token * 17
    assert drafting.activations > plain.activations
