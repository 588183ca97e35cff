"""What the families of encoders share."""

from collections.abc import Collection

from pagoda.arch.names import linear_rules
from pagoda.arch.read import MAX_HEADS, MAX_VOCAB, MAX_WIDTH, Reader
from pagoda.arch.spec import (
    Activation,
    AttentionSpec,
    PoolingMethod,
    PoolingSpec,
    RopeSpec,
    WeightRule,
)
from pagoda.base.errors import UnsupportedModelError

# transformers' names; gelu_new and gelu_pytorch_tanh are the same formula.
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu",
    "silu": "silu",
}  # fmt: skip
# gguf's PoolingType.
_METHODS: dict[int, PoolingMethod] = {1: "mean", 2: "cls", 3: "last"}
_HEAD, _CLASSIFIER = "cls", "cls.output"


def encoder_activation(reader: Reader, field: str, default: str = "gelu") -> Activation:
    """Raises UnsupportedModelError for one that is not known here."""
    name = reader.text(field, default)
    if name not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"config.json asks for the activation {name!r}; encoders have "
            f"{', '.join(_ACTIVATIONS)} here."
        )
    return _ACTIVATIONS[name]


def encoder_attention(
    reader: Reader, rope: RopeSpec | None, *, bias: bool, window: int | None = None
) -> AttentionSpec:
    """Equal heads that share the hidden size, by a config.json."""
    hidden = reader.integer("hidden_size", MAX_WIDTH)
    heads = reader.integer("num_attention_heads", MAX_HEADS)
    return attention_of(hidden, heads, rope, bias=bias, window=window, reader=reader)


def attention_of(
    hidden: int,
    heads: int,
    rope: RopeSpec | None,
    *,
    bias: bool,
    window: int | None = None,
    reader: Reader,
) -> AttentionSpec:
    if hidden % heads:
        raise reader.error("hidden_size", f"is {hidden}, which {heads} heads cannot share equally")
    size = hidden // heads
    return AttentionSpec(
        "encoder", heads, heads, size, size**-0.5, rope, window, qkv_bias=bias, output_bias=bias
    )


def gguf_rules(
    tensor_names: Collection[str],
    *,
    bias: bool,
    tables: bool,
    gate_up: tuple[str, ...] = ("ffn_up",),
) -> tuple[WeightRule, ...]:
    """Names as llama.cpp writes those of an encoder whose norms stand behind its parts
    (gguf-py/gguf/constants.py, TENSOR_NAMES); `tables` of positions it has if it turns nothing."""
    source, layer = "blk.{layer}.", "layers.{layer}."
    fused = "blk.0.attn_qkv.weight" in tensor_names
    qkv = ("attn_qkv",) if fused else ("attn_q", "attn_k", "attn_v")
    feed = "mlp.gate_up" if len(gate_up) > 1 else "mlp.up"
    found = {"embed": "token_embd", "types": "token_types"}
    if tables:
        found["positions"] = "position_embd"
    return (
        *(WeightRule(f"{param}.weight", (f"{name}.weight",)) for param, name in found.items()),
        *linear_rules("embed_norm", ("token_embd_norm",)),
        *linear_rules(layer + "attention.qkv", tuple(source + name for name in qkv), bias),
        *linear_rules(layer + "attention.output", (source + "attn_output",), bias),
        *linear_rules(layer + "attention_norm", (source + "attn_output_norm",)),
        *linear_rules(layer + feed, tuple(source + name for name in gate_up), bias),
        *linear_rules(layer + "mlp.down", (source + "ffn_down",), bias),
        *linear_rules(layer + "mlp_norm", (source + "layer_output_norm",)),
    )


def gguf_head_rules(*, bias: bool = True) -> tuple[WeightRule, ...]:
    """A classifier's dense layer and its output, as llama.cpp writes them."""
    return (
        *linear_rules("dense", (_HEAD,), bias),
        *linear_rules("classifier", (_CLASSIFIER,)),
    )


def gguf_pooling(
    reader: Reader, tensor_names: Collection[str], default: PoolingMethod
) -> PoolingSpec:
    """How the metadata says that states become a vector, or scores where there is a classifier.

    Raises UnsupportedModelError where llama.cpp's converter left the classifier's dense layer out.
    """
    kind = reader.integer("pooling_type", 4, 0, minimum=0)
    method = _METHODS.get(kind, default)
    if f"{_CLASSIFIER}.weight" not in tensor_names:
        return PoolingSpec(method)
    if f"{_HEAD}.weight" not in tensor_names:
        raise UnsupportedModelError(
            "The GGUF has a classifier (cls.output) without the dense layer in front of it "
            "(cls), so that its scores are not the model's. Take the model as safetensors."
        )
    kind = reader.integer("classifier.pooling_type", 4, 0, minimum=0)
    labels = reader.texts("classifier.output_labels", ("LABEL_0",))
    return PoolingSpec(
        _METHODS.get(kind, "cls"),
        normalize=False,
        labels=labels,
        activation="sigmoid" if len(labels) == 1 else "softmax",
    )


def token_types(metadata_reader: Reader) -> int:
    """How many a GGUF's tokenizer has."""
    return metadata_reader.integer("token_type_count", MAX_VOCAB, 1)
