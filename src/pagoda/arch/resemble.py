"""What an unknown architecture looks like, in terms of those that are known."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from typing import Any

from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.base.registry import Registry

Parse = Callable[[str], ModelSpec]
"""The spec of the unknown model if it were the named architecture; raises where it is not."""

# Names quoted of each kind: enough to see what is new.
_QUOTED = 6
# What every decoder's config.json may have, and what says nothing of its architecture.
_CONFIG_FIELDS = frozenset((
    "architectures", "attention_bias", "attention_dropout", "attn_implementation", "auto_map",
    "bos_token_id", "dtype", "embd_pdrop", "eos_token_id", "head_dim", "hidden_act",
    "hidden_dropout", "hidden_size", "id2label", "initializer_range", "intermediate_size",
    "is_decoder", "label2id", "layer_types", "max_position_embeddings", "max_window_layers",
    "mlp_bias", "model_type", "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
    "original_max_position_embeddings", "pad_token_id", "pretraining_tp", "quantization_config",
    "resid_pdrop", "rms_norm_eps", "rope_parameters", "rope_scaling", "rope_theta",
    "sliding_window", "text_config", "tie_word_embeddings", "torch_dtype",
    "transformers_version", "use_cache", "use_sliding_window", "vocab_size",
))  # fmt: skip
_GGUF_FIELDS = frozenset((
    "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.layer_norm_rms_epsilon", "attention.value_length", "block_count",
    "context_length", "embedding_length", "feed_forward_length", "rope.dimension_count",
    "rope.freq_base", "rope.scaling.factor", "rope.scaling.type", "vocab_size",
))  # fmt: skip


def resembling_config(
    name: str, config: Mapping[str, Any], tensor_names: Collection[str], known: Registry
) -> str:
    """`the nearest known is 'LlamaForCausalLM', but config.json also has kv_lora_rank`."""
    nested = config.get("text_config")
    fields = {**config, **nested} if isinstance(nested, Mapping) else config
    extra = [field for field, value in fields.items() if value and field not in _CONFIG_FIELDS]

    def parse(other: str) -> ModelSpec:
        spec: ModelSpec = known.get(other)(config)
        return spec

    return _sentence(name, "config.json", extra, tensor_names, known, parse)


def resembling_gguf(
    name: str, metadata: Mapping[str, Any], tensor_names: Collection[str], known: Registry
) -> str:
    """As `resembling_config`, of a GGUF."""
    prefix = f"{name}."
    own = {key.removeprefix(prefix): metadata[key] for key in metadata if key.startswith(prefix)}
    extra = [field for field in own if field not in _GGUF_FIELDS]

    def parse(other: str) -> ModelSpec:
        renamed = {f"{other}.{field}": value for field, value in own.items()}
        spec: ModelSpec = known.get(other)({**metadata, **renamed}, tensor_names)
        return spec

    return _sentence(name, "its metadata", extra, tensor_names, known, parse)


def _sentence(
    name: str,
    source: str,
    fields: Iterable[str],
    tensor_names: Collection[str],
    known: Iterable[str],
    parse: Parse,
) -> str:
    best = _closest(name, known)
    differing: list[str] = []
    if tensor_names:
        found = {other: _differing(other, tensor_names, parse) for other in known}
        fewest = min(len(names) for names in found.values())
        best = _closest(name, [other for other in found if len(found[other]) == fewest])
        differing = found[best]
    also = [f"{source} also has {_listed(fields)}"] if fields else []
    if differing:
        also.append(f"other tensors are {_listed(differing)}")
    if also:
        return f"the nearest known is {best!r}, but {' and '.join(also)}"
    how = ", whose fields and tensors it has" if tensor_names else (
        f", and {source} alone does not tell how it differs"
    )  # fmt: skip
    return f"the nearest known is {best!r}{how}"


def _closest(name: str, names: Iterable[str]) -> str:
    """By spelling."""
    word = SequenceMatcher(b=name.lower())

    def ratio(other: str) -> float:
        word.set_seq1(other.lower())
        return word.ratio()

    return max(sorted(names), key=ratio)


def _differing(other: str, tensor_names: Collection[str], parse: Parse) -> list[str]:
    """Tensors in which the model differs from an architecture, layers' numbers left out; all of
    them where it cannot be that at all."""
    try:
        spec = parse(other)
    except (CheckpointError, UnsupportedModelError):
        return [_kind(name) for name in tensor_names]
    wanted = {source for rule in spec.expanded_weights() for source in rule.sources}
    return list(
        dict.fromkeys(
            _kind(name)
            for name in sorted(wanted.symmetric_difference(tensor_names))
            if not any(fnmatchcase(name, pattern) for pattern in spec.ignored_weights)
        )
    )


def _kind(name: str) -> str:
    # Names come from the file: control characters must not reach the log.
    return ascii(re.sub(r"(?<=\.)\d+(?=\.)", "*", name))[1:-1]


def _listed(names: Iterable[str]) -> str:
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - _QUOTED} more" if len(unique) > _QUOTED else ""
    return ", ".join(ascii(name)[1:-1] for name in unique[:_QUOTED]) + more
