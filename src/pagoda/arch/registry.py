"""Which architectures are known, by their names in config.json and in GGUF files."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.draft_head import draft_head_as_found
from pagoda.arch.heads import as_nested, causal_class, with_config_head, with_gguf_head
from pagoda.arch.moe import as_stored
from pagoda.arch.read import Reader, config_reader
from pagoda.arch.resemble import resembling_config, resembling_gguf
from pagoda.arch.spec import ModelSpec
from pagoda.arch.tower import tower_as_found
from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.base.registry import Registry
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.prequantized.select import description_of

CONFIG_ARCHITECTURES = Registry(
    "architecture",
    {
        "LlamaForCausalLM": "llama:from_config",
        "MistralForCausalLM": "llama:mistral_from_config",
        "MixtralForCausalLM": "llama:mixtral_from_config",
        "Mistral3ForConditionalGeneration": "mistral3:from_config",
        "Ministral3ForCausalLM": "mistral3:ministral_from_config",
        "Llama4ForCausalLM": "llama4:from_config",
        "Llama4ForConditionalGeneration": "llama4:conditional_from_config",
        "SmolLM3ForCausalLM": "smollm3:from_config",
        "Phi3ForCausalLM": "phi3:from_config",
        "Phi4MultimodalForCausalLM": "phi4_multimodal:from_config",
        "Phi4MMForCausalLM": "phi4_multimodal:published_from_config",
        "GraniteForCausalLM": "granite:from_config",
        "GraniteMoeForCausalLM": "granite:moe_from_config",
        "GraniteMoeSharedForCausalLM": "granite:shared_moe_from_config",
        "GraniteMoeHybridForCausalLM": "granite:hybrid_from_config",
        "Qwen2ForCausalLM": "qwen2:from_config",
        "Qwen3ForCausalLM": "qwen3:from_config",
        "WhisperForConditionalGeneration": "whisper:from_config",
        "Qwen2AudioForConditionalGeneration": "qwen2_audio:from_config",
        "VoxtralForConditionalGeneration": "voxtral:from_config",
        "Qwen2VLForConditionalGeneration": "qwen2_vl:from_config",
        "Qwen2_5_VLForConditionalGeneration": "qwen2_vl:qwen25_from_config",
        "Qwen3VLForConditionalGeneration": "qwen3_vl:from_config",
        "Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe:from_config",
        "InternVLForConditionalGeneration": "internvl:from_config",
        "Qwen3_5ForCausalLM": "qwen3_5:from_config",
        "Qwen3_5ForConditionalGeneration": "qwen3_5:conditional_from_config",
        "Qwen3_5MoeForCausalLM": "qwen3_5_moe:from_config",
        "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe:conditional_from_config",
        "Qwen3NextForCausalLM": "qwen3_next:from_config",
        "Qwen3MoeForCausalLM": "qwen3_moe:from_config",
        "BambaForCausalLM": "bamba:from_config",
        "NemotronHForCausalLM": "nemotron_h:from_config",
        "Lfm2ForCausalLM": "lfm2:from_config",
        "Lfm2MoeForCausalLM": "lfm2:moe_from_config",
        "GptOssForCausalLM": "gpt_oss:from_config",
        "Gemma2ForCausalLM": "gemma2:from_config",
        "Gemma3ForCausalLM": "gemma3:from_config",
        "Gemma3ForConditionalGeneration": "gemma3:conditional_from_config",
        "Gemma3nForCausalLM": "gemma3n:from_config",
        "Gemma3nForConditionalGeneration": "gemma3n:conditional_from_config",
        "Gemma4ForCausalLM": "gemma4:from_config",
        "Gemma4ForConditionalGeneration": "gemma4:conditional_from_config",
        "Olmo2ForCausalLM": "olmo2:from_config",
        "Olmo3ForCausalLM": "olmo2:olmo3_from_config",
        "Glm4ForCausalLM": "glm4:from_config",
        "Glm4MoeForCausalLM": "glm4_moe:from_config",
        "DeepseekV2ForCausalLM": "deepseek:v2_from_config",
        "DeepseekV3ForCausalLM": "deepseek:from_config",
        "DeepseekV32ForCausalLM": "deepseek_sparse:from_config",
        "GlmMoeDsaForCausalLM": "deepseek_sparse:glm_from_config",
        "Glm4MoeLiteForCausalLM": "deepseek:glm_from_config",
        "YoutuForCausalLM": "deepseek:youtu_from_config",
        "Ernie4_5ForCausalLM": "ernie4_5:from_config",
        "Ernie4_5_ForCausalLM": "ernie4_5:from_config",
        "Ernie4_5_MoeForCausalLM": "ernie4_5:moe_from_config",
        "MiniMaxM2ForCausalLM": "minimax_m2:from_config",
        "Cohere2ForCausalLM": "cohere2:from_config",
        "SeedOssForCausalLM": "seed_oss:from_config",
        "HunYuanDenseV1ForCausalLM": "hunyuan:from_config",
        "HunYuanMoEV1ForCausalLM": "hunyuan:moe_from_config",
        "BertModel": "bert:bert_from_config",
        "BertForSequenceClassification": "bert:bert_classifier_from_config",
        "RobertaModel": "bert:roberta_from_config",
        "RobertaForSequenceClassification": "bert:roberta_classifier_from_config",
        "XLMRobertaModel": "bert:roberta_from_config",
        "XLMRobertaForSequenceClassification": "bert:roberta_classifier_from_config",
        "ModernBertModel": "modernbert:from_config",
        "ModernBertForMaskedLM": "modernbert:masked_from_config",
        "ModernBertForSequenceClassification": "modernbert:classifier_from_config",
        "NomicBertModel": "nomic_bert:from_config",
        "Gemma3TextModel": "embedding_gemma:from_config",
    },
    package="pagoda.arch.families",
)

GGUF_ARCHITECTURES = Registry(
    "GGUF architecture",
    {
        "llama": "llama:from_gguf",
        "mistral3": "mistral3:from_gguf",
        "llama4": "llama4:from_gguf",
        "smollm3": "smollm3:from_gguf",
        "phi3": "phi3:from_gguf",
        "granite": "granite:from_gguf",
        "granitemoe": "granite:moe_from_gguf",
        "granitehybrid": "granite:hybrid_from_gguf",
        "qwen2": "qwen2:from_gguf",
        "qwen3": "qwen3:from_gguf",
        "qwen2vl": "qwen2_vl:from_gguf",
        "qwen3vl": "qwen3_vl:from_gguf",
        "qwen3vlmoe": "qwen3_vl_moe:from_gguf",
        "qwen35": "qwen3_5:from_gguf",
        "qwen35moe": "qwen3_5_moe:from_gguf",
        "qwen3next": "qwen3_next:from_gguf",
        "qwen3moe": "qwen3_moe:from_gguf",
        "nemotron_h": "nemotron_h:from_gguf",
        "nemotron_h_moe": "nemotron_h:moe_from_gguf",
        "lfm2": "lfm2:from_gguf",
        "lfm2moe": "lfm2:moe_from_gguf",
        "gpt-oss": "gpt_oss:from_gguf",
        "gemma2": "gemma2:from_gguf",
        "gemma3": "gemma3:from_gguf",
        "gemma3n": "gemma3n:from_gguf",
        "gemma4": "gemma4:from_gguf",
        "glm4": "glm4:from_gguf",
        "glm4moe": "glm4_moe:from_gguf",
        "deepseek2": "deepseek:from_gguf",
        "deepseek32": "deepseek_sparse:from_gguf",
        "glm-dsa": "deepseek_sparse:glm_from_gguf",
        "ernie4_5": "ernie4_5:from_gguf",
        "ernie4_5-moe": "ernie4_5:moe_from_gguf",
        "minimax-m2": "minimax_m2:from_gguf",
        "cohere2": "cohere2:from_gguf",
        "olmo2": "olmo2:from_gguf",
        "seed_oss": "seed_oss:from_gguf",
        "hunyuan-dense": "hunyuan:from_gguf",
        "hunyuan-moe": "hunyuan:moe_from_gguf",
        "bert": "bert:from_gguf",
        "modern-bert": "modernbert:from_gguf",
        "nomic-bert": "nomic_bert:from_gguf",
        "gemma-embedding": "embedding_gemma:from_gguf",
    },
    package="pagoda.arch.families",
)


_HEAD = (
    "This is an EAGLE-3 head, which guesses for a model and is none. Name it beside its model: "
    '--speculative-config \'{"method": "eagle3", "model": "HEAD"}\', or --spec-type draft-eagle3 '
    "-md HEAD."
)


def spec_for(
    config: Mapping[str, Any] | None,
    metadata: Mapping[str, Any],
    tensors: Collection[str] | Mapping[str, TensorInfo],
) -> ModelSpec:
    """The spec of a checkpoint: by its GGUF metadata if it has some, else by its config.json.

    `tensors` are the checkpoint's names, and in a mapping what its headers say of them; empty if
    there is none.
    Raises CheckpointError for a wrong or missing field, UnsupportedModelError for an
    architecture or a quantization that is not known.
    """
    if "general.architecture" in metadata:
        return _gguf_spec(metadata, tensors)
    if config is None:
        raise CheckpointError(
            "The model has neither a config.json nor GGUF metadata that names its architecture; "
            "point to the folder that holds config.json."
        )
    name = _architecture(config)
    if "Eagle3" in name:
        raise CheckpointError(_HEAD)
    known = name if name in CONFIG_ARCHITECTURES else causal_class(name)
    if known not in CONFIG_ARCHITECTURES:
        likeness = resembling_config(name, config, tensors, CONFIG_ARCHITECTURES)
        raise _unknown(CONFIG_ARCHITECTURES, name, likeness)
    spec: ModelSpec = CONFIG_ARCHITECTURES.get(known)(config)
    if spec.encoder is None:
        spec = with_config_head(spec, name, config_reader(config), tensors)
    spec = as_nested(spec, tensors)
    spec = tower_as_found(draft_head_as_found(as_stored(spec, tensors), tensors), tensors)
    return replace(spec, quantization=description_of(config))


def _gguf_spec(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    name = metadata["general.architecture"]
    if not isinstance(name, str):
        raise CheckpointError(
            f"GGUF metadata: general.architecture must be a text, not {name!r}. "
            "The file is damaged; fetch it again."
        )
    if name == "clip":
        raise CheckpointError(
            "This GGUF is a vision projector (mmproj): it goes with a model and is none. Name the "
            "GGUF of the language model."
        )
    if name == "eagle3":
        raise CheckpointError(_HEAD)
    if name not in GGUF_ARCHITECTURES:
        likeness = resembling_gguf(name, metadata, tensor_names, GGUF_ARCHITECTURES)
        raise _unknown(GGUF_ARCHITECTURES, name, likeness)
    spec: ModelSpec = GGUF_ARCHITECTURES.get(name)(metadata, tensor_names)
    if spec.encoder is not None:
        return spec
    spec = draft_head_as_found(spec, tensor_names)
    return with_gguf_head(spec, Reader(metadata, "GGUF metadata", f"{name}."), tensor_names)


def _unknown(known: Registry, name: str, likeness: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"The {known.kind} {name!r} is not supported yet; {likeness}.")


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise CheckpointError(
            f"config.json: architectures must list one class name, not {names!r}; "
            "write the class of the model, such as LlamaForCausalLM."
        )
    name: str = names[0]
    return name
