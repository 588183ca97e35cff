"""Which architectures are known, by their names in config.json and in GGUF files."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.base.registry import Registry
from pagoda.weights.published.select import method_of

CONFIG_ARCHITECTURES = Registry(
    "architecture",
    {
        "LlamaForCausalLM": "pagoda.arch.llama:from_config",
        "MistralForCausalLM": "pagoda.arch.llama:mistral_from_config",
        "Qwen2ForCausalLM": "pagoda.arch.qwen2:from_config",
        "Qwen3ForCausalLM": "pagoda.arch.qwen3:from_config",
        "Qwen3VLForConditionalGeneration": "pagoda.arch.qwen3_vl:from_config",
        "Qwen3VLMoeForConditionalGeneration": "pagoda.arch.qwen3_vl_moe:from_config",
        "Qwen3_5ForCausalLM": "pagoda.arch.qwen3_5:from_config",
        "Qwen3_5ForConditionalGeneration": "pagoda.arch.qwen3_5:conditional_from_config",
        "Qwen3MoeForCausalLM": "pagoda.arch.qwen3_moe:from_config",
        "GptOssForCausalLM": "pagoda.arch.gpt_oss:from_config",
        "BertModel": "pagoda.arch.bert:bert_from_config",
        "BertForSequenceClassification": "pagoda.arch.bert:bert_classifier_from_config",
        "RobertaModel": "pagoda.arch.bert:roberta_from_config",
        "RobertaForSequenceClassification": "pagoda.arch.bert:roberta_classifier_from_config",
        "XLMRobertaModel": "pagoda.arch.bert:roberta_from_config",
        "XLMRobertaForSequenceClassification": "pagoda.arch.bert:roberta_classifier_from_config",
    },
)

GGUF_ARCHITECTURES = Registry(
    "GGUF architecture",
    {
        "llama": "pagoda.arch.llama:from_gguf",
        "qwen2": "pagoda.arch.qwen2:from_gguf",
        "qwen3": "pagoda.arch.qwen3:from_gguf",
        "qwen3vl": "pagoda.arch.qwen3_vl:from_gguf",
        "qwen3vlmoe": "pagoda.arch.qwen3_vl_moe:from_gguf",
        "qwen35": "pagoda.arch.qwen3_5:from_gguf",
        "qwen3moe": "pagoda.arch.qwen3_moe:from_gguf",
        "gpt-oss": "pagoda.arch.gpt_oss:from_gguf",
    },
)


def spec_for(
    config: Mapping[str, Any] | None, metadata: Mapping[str, Any], tensor_names: Collection[str]
) -> ModelSpec:
    """The spec of a checkpoint: by its GGUF metadata if it has some, else by its config.json.

    Raises CheckpointError for a wrong or missing field, UnsupportedModelError for an
    architecture or a quantization that is not known.
    """
    if "general.architecture" in metadata:
        name = _known(GGUF_ARCHITECTURES, metadata["general.architecture"])
        spec: ModelSpec = GGUF_ARCHITECTURES.get(name)(metadata, tensor_names)
        return spec
    if config is None:
        raise CheckpointError(
            "The model has neither a config.json nor GGUF metadata that names its architecture; "
            "point to the folder that holds config.json."
        )
    name = _known(CONFIG_ARCHITECTURES, _architecture(config))
    spec = CONFIG_ARCHITECTURES.get(name)(config)
    method = method_of(config)
    return spec if method is None else replace(spec, quantization=method.description)


def _architecture(config: Mapping[str, Any]) -> object:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1:
        raise CheckpointError(
            f"config.json: architectures must list one class name, not {names!r}; "
            "write the class of the model, such as LlamaForCausalLM."
        )
    return names[0]


def _known(known: Registry, name: object) -> str:
    if not isinstance(name, str) or name not in known:
        raise UnsupportedModelError(
            f"The {known.kind} {name!r} is not supported yet; {known.nearest(str(name))}."
        )
    return name
