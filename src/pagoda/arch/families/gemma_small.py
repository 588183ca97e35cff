"""What the small models of Gemma 3n and 4 have: inputs of each layer's own, and last layers that
attend to the keys and values of earlier ones."""

from collections.abc import Sequence
from dataclasses import replace

from pagoda.arch.families.gemma import LAYER
from pagoda.arch.read import MAX_VOCAB, MAX_WIDTH, Reader
from pagoda.arch.spec import WeightRule
from pagoda.arch.streams import LayerInputSpec

_QKV = LAYER + "attention.qkv."
_K_NORM = LAYER + "attention.k_norm.weight"
# Gemma3nTextConfig's and Gemma4TextConfig's.
_SIZE, _VOCAB = 256, 262144
# By parameters: names in a checkpoint of transformers, and in a GGUF.
_CONFIG_MODEL = {
    "embed": "embed_tokens_per_layer",
    "projection": "per_layer_model_projection",
    "norm": "per_layer_projection_norm",
}
_GGUF_MODEL = {
    "embed": "per_layer_token_embd",
    "projection": "per_layer_model_proj",
    "norm": "per_layer_proj_norm",
}
_CONFIG_LAYER = {
    "input.gate": "per_layer_input_gate",
    "input.projection": "per_layer_projection",
    "input_result_norm": "post_per_layer_input_norm",
}
_GGUF_LAYER = {
    "input.gate": "inp_gate", "input.projection": "proj", "input_result_norm": "post_norm",
}  # fmt: skip


def config_inputs(reader: Reader) -> LayerInputSpec | None:
    """By `hidden_size_per_layer_input`, which some models have as 0."""
    size = reader.integer("hidden_size_per_layer_input", MAX_WIDTH, _SIZE, minimum=0)
    if not size:
        return None
    vocab = reader.integer("vocab_size_per_layer_input", MAX_VOCAB, _VOCAB)
    return LayerInputSpec(size, vocab, reader.integer("pad_token_id", vocab - 1, 0, minimum=0))


def gguf_inputs(reader: Reader, vocab_size: int) -> LayerInputSpec | None:
    """Likewise; llama.cpp's table has a row for every token, and media take the first."""
    size = reader.integer("embedding_length_per_layer_input", MAX_WIDTH, 0, minimum=0)
    return LayerInputSpec(size, vocab_size) if size else None


def config_input_rules(inputs: LayerInputSpec | None, prefix: str) -> list[WeightRule]:
    """Names as transformers writes them (modeling_gemma3n.py, modeling_gemma4.py)."""
    if inputs is None:
        return []
    return _input_rules(
        {param: prefix + name for param, name in _CONFIG_MODEL.items()},
        {param: f"{prefix}layers.{{layer}}.{name}" for param, name in _CONFIG_LAYER.items()},
    )


def gguf_input_rules(inputs: LayerInputSpec | None) -> list[WeightRule]:
    """Names as llama.cpp writes them (gguf-py/gguf/constants.py, TENSOR_NAMES)."""
    if inputs is None:
        return []
    layer = {param: f"blk.{{layer}}.{name}" for param, name in _GGUF_LAYER.items()}
    return _input_rules(_GGUF_MODEL, layer)


def _input_rules(model: dict[str, str], layer: dict[str, str]) -> list[WeightRule]:
    return [
        *(WeightRule(f"layer_inputs.{param}.weight", (f"{name}.weight",))
          for param, name in model.items()),
        *(WeightRule(f"{LAYER}{param}.weight", (f"{name}.weight",))
          for param, name in layer.items()),
    ]  # fmt: skip


def borrowed(reader: Reader, name: str, kinds: Sequence[object]) -> list[int]:
    """Each layer's `AttentionSpec.borrows`, where the field `name` says how many of the last layers
    attend to the keys and values of the last layer of their kind in front of them."""
    count = reader.integer(name, len(kinds) - 1, 0, minimum=0)
    own = len(kinds) - count
    last = {kind: index for index, kind in enumerate(kinds[:own])}
    missing = {kind for kind in kinds if kind not in last}
    if missing:
        raise reader.error(name, f"is {count}: of the layers in front of these none is like all")
    return [max(0, index - last[kind]) if index >= own else 0 for index, kind in enumerate(kinds)]


def without_borrowed(
    rules: Sequence[WeightRule], borrows: Sequence[int]
) -> tuple[tuple[WeightRule, ...], tuple[str, ...]]:
    """The rules, where layers that borrow keys and values make none; and the names of the tensors
    that published files have for these layers all the same."""
    borrowers = tuple(index for index, back in enumerate(borrows) if back)
    kept: list[WeightRule] = []
    unused: list[str] = []
    for rule in rules:
        of_qkv = rule.param.startswith(_QKV)
        if not borrowers or not (of_qkv or rule.param == _K_NORM):
            kept.append(rule)
            continue
        layers = range(len(borrows)) if rule.layers is None else rule.layers
        kept.append(replace(rule, layers=tuple(x for x in layers if not borrows[x])))
        theirs = tuple(x for x in layers if borrows[x])
        if of_qkv:
            kept.append(replace(rule, layers=theirs, sources=rule.sources[:1]))
        for source in rule.sources[1:] if of_qkv else rule.sources:
            unused += [source.replace("{layer}", str(layer)) for layer in theirs]
    return tuple(kept), tuple(unused)
