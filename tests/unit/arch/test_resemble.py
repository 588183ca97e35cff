"""What is said of an architecture that is not known."""

import pytest

from pagoda.arch.registry import spec_for
from pagoda.base.errors import CheckpointError, UnsupportedModelError
from tests.unit.arch.test_specs import LLAMA_3_1_8B, QWEN3_GGUF


def refusal(config=None, metadata=None, tensors=()) -> str:
    with pytest.raises(UnsupportedModelError) as caught:
        spec_for(config, metadata or {}, tensors)
    return str(caught.value)


def names(of: dict, architecture: str) -> set[str]:
    spec = spec_for({**of, "architectures": [architecture]}, {}, ())
    return {source for rule in spec.expanded_weights() for source in rule.sources}


def test_by_its_tensors_and_not_by_its_spelling():
    """Spelled like Qwen3, built like Qwen2 but for one matrix of each layer."""
    config = {**LLAMA_3_1_8B, "architectures": ["Qwen3xForCausalLM"], "lora_rank": 8}
    tensors = names(LLAMA_3_1_8B, "Qwen2ForCausalLM")
    tensors |= {f"model.layers.{i}.self_attn.gate.weight" for i in range(32)}
    assert refusal(config, tensors=tensors) == (
        "The architecture 'Qwen3xForCausalLM' is not supported yet; the nearest known is "
        "'Qwen2ForCausalLM', but config.json also has lora_rank and other tensors are "
        "model.layers.*.self_attn.gate.weight."
    )


def test_by_its_spelling_where_there_are_no_tensors():
    config = {**LLAMA_3_1_8B, "architectures": ["Llama9ForCausalLM"], "num_experts": 64}
    assert refusal(config) == (
        "The architecture 'Llama9ForCausalLM' is not supported yet; the nearest known is "
        "'LlamaForCausalLM', but config.json also has num_experts."
    )


def test_a_config_that_does_not_tell():
    config = {**LLAMA_3_1_8B, "architectures": ["Llama9ForCausalLM"]}
    assert refusal(config).endswith("and config.json alone does not tell how it differs.")
    same = refusal(config, tensors=names(LLAMA_3_1_8B, "LlamaForCausalLM"))
    assert same.endswith("'LlamaForCausalLM', whose fields and tensors it has.")


def test_a_head_that_is_not_known_either():
    config = {**LLAMA_3_1_8B, "architectures": ["FooForSequenceClassification"]}
    assert "architecture 'FooForSequenceClassification'" in refusal(config)


def test_a_gguf():
    metadata = {key.replace("qwen3.", "qwen9."): value for key, value in QWEN3_GGUF.items()} | {
        "general.architecture": "qwen9",
        "qwen9.expert_count": 8,
    }
    spec = spec_for(None, QWEN3_GGUF, ["token_embd.weight"])
    tensors = [source for rule in spec.expanded_weights() for source in rule.sources]
    tensors = [name for name in tensors if "ffn_up" not in name]
    tensors += [f"blk.{i}.ffn_up_exps.weight" for i in range(28)]
    assert refusal(metadata=metadata, tensors=tensors) == (
        "The GGUF architecture 'qwen9' is not supported yet; the nearest known is 'qwen3', but "
        "its metadata also has expert_count and other tensors are blk.*.ffn_up.weight, "
        "blk.*.ffn_up_exps.weight."
    )


def test_hostile_names_stay_on_their_line():
    config = {**LLAMA_3_1_8B, "architectures": ["X"], "a\nERROR": 1}
    assert refusal(config, tensors=["b\x1b[31m"]).isprintable()


def test_a_vision_projector_is_no_model():
    with pytest.raises(CheckpointError, match="vision projector"):
        spec_for(None, {"general.architecture": "clip"}, ())
