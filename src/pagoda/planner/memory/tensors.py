"""Every parameter that a loaded model holds, by its sizes alone: what else the planner counts
(parameters, bytes of a rank, bytes read for a token) follows from this list.

Names are those of the weight rules (`arch.spec.WeightRule.param`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from pagoda.arch.encoder import EncoderSpec
from pagoda.arch.latent import LatentSpec
from pagoda.arch.spec import (
    AttentionSpec,
    DeltaNetSpec,
    DraftHeadSpec,
    Eagle3Spec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    VisionSpec,
)
from pagoda.arch.streams import AltUpSpec, LayerInputSpec

Role = Literal[
    "embedding", "head", "linear", "experts", "per_head", "router", "vector", "conv", "table",
    "vision",
]  # fmt: skip
"""`table`: learned positions, types and layers' inputs, looked up and never multiplied. `vision`: a
matrix of the tower. `per_head`: one for each head of attention."""


_DRAFT_HEAD = "draft_head."


@dataclass(frozen=True)
class Part:
    """Rows of a matrix that belong together: a device of several holds whole units of them."""

    rows: int
    units: int
    """Heads, or the rows themselves."""


@dataclass(frozen=True)
class ModelTensor:
    """A parameter as the model holds it: linear layers that are computed at once are merged."""

    name: str
    shape: tuple[int, ...]
    """Experts (or heads) first where there are some, then output, then input size."""
    role: Role
    parts: tuple[Part, ...] = ()
    """How several devices share the rows; empty where each holds all of them."""
    column_units: int = 0
    """How many units they share the columns by; 0 where each holds all of them."""
    layer: int | None = None
    """Layer of the language model; None for what is in none, the draft head's included."""
    column_runs: int = 1
    """In how many places of the matrix the columns of one device lie, where they are shared."""

    @property
    def drafts(self) -> bool:
        """Whether it is the draft head's, which a step reads only to draft."""
        return self.name.startswith(_DRAFT_HEAD)

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Stored in the checkpoint's storage format, where that is a quantized one."""
        return len(self.shape) - (self.role == "experts") > 1

    def rank_shape(self, size: int, *, whole_experts: bool = False) -> tuple[int, ...]:
        """What one device of `size` holds: of each expert a slice, or some of the experts.

        Where key-value heads are fewer than devices, several hold the same one.
        """
        shape = list(self.shape)
        if self.role == "experts" and whole_experts:
            return (_share(shape[0], size), *shape[1:])
        if self.parts:
            row = 1 if self.role == "experts" else 0
            shape[row] = sum(
                part.rows // part.units * _share(part.units, size) for part in self.parts
            )
        if self.column_units:
            shape[-1] = shape[-1] // self.column_units * _share(self.column_units, size)
        return tuple(shape)


def _share(units: int, size: int) -> int:
    return -(-units // size)


def model_tensors(spec: ModelSpec) -> list[ModelTensor]:
    """Tensors of the whole model, tower, heads for scores and a loaded draft head included; a tied
    head is not there twice."""
    hidden, vocab = spec.hidden_size, spec.vocab_size
    vocabulary = (Part(vocab, vocab),)
    found = [ModelTensor("embed.weight", (vocab, hidden), "embedding", vocabulary)]
    norm_bias = spec.encoder is not None and spec.encoder.norm_bias
    if spec.encoder is not None:
        found += _encoder(spec.encoder, hidden)
    for index, layer in enumerate(spec.layers):
        found += _layer(layer, hidden, f"layers.{index}.", index, norm_bias)
    if spec.layer_inputs is not None:
        found += _layer_inputs(spec.layer_inputs, len(spec.layers), hidden)
    if spec.altup is not None:
        found += _altup(spec.altup, len(spec.layers), hidden)
    if spec.encoder is None or spec.encoder.final_norm:
        found += _norm("norm", hidden, bias=norm_bias)
    if not spec.tie_word_embeddings and spec.encoder is None:
        found.append(ModelTensor("head.weight", (vocab, hidden), "head", vocabulary))
    found += _scores(spec)
    if spec.vision is not None:
        tower = _sandwiched_vision if spec.vision.pooled and spec.vision.gated else _vision
        found += tower(spec.vision, hidden)
    if spec.draft_head is not None and spec.drafts:
        found += _draft_head(spec.draft_head, hidden, vocabulary)
    return found


def _encoder(spec: EncoderSpec, hidden: int) -> Iterator[ModelTensor]:
    for name, rows in (("positions", spec.num_positions), ("types", spec.num_token_types)):
        if rows:
            yield ModelTensor(f"{name}.weight", (rows, hidden), "table")
    if spec.embed_norm:
        yield from _norm("embed_norm", hidden, bias=spec.norm_bias)


def _norm(
    name: str, size: int, *, bias: bool = False, layer: int | None = None
) -> Iterator[ModelTensor]:
    for kind in (".weight", ".bias") if bias else (".weight",):
        yield ModelTensor(name + kind, (size,), "vector", layer=layer)


def _linear(
    name: str,
    parts: tuple[Part, ...],
    columns: int,
    bias: bool = False,
    *,
    column_units: int = 0,
    column_runs: int = 1,
    layer: int | None = None,
    role: Role = "linear",
) -> Iterator[ModelTensor]:
    """Split on rows, or where `column_units` are given on columns."""
    rows = sum(part.rows for part in parts)
    split = () if column_units else parts
    yield ModelTensor(
        name + ".weight", (rows, columns), role, split, column_units, layer, column_runs
    )
    if bias:
        yield ModelTensor(name + ".bias", (rows,), "vector", split, layer=layer)


def _rows(*sizes: int) -> tuple[Part, ...]:
    return tuple(Part(size, size) for size in sizes)


def _layer(
    layer: LayerSpec, hidden: int, prefix: str, index: int | None, norm_bias: bool = False
) -> Iterator[ModelTensor]:
    after = layer.norms == "after"
    if layer.norms != "mlp":
        first = "attention_result_norm" if after else "attention_norm"
        yield from _norm(prefix + first, hidden, bias=norm_bias, layer=index)
    if isinstance(layer.mixer, AttentionSpec) and layer.mixer.latent is not None:
        yield from _latent_attention(
            layer.mixer, layer.mixer.latent, hidden, prefix + "attention.", index
        )
    elif isinstance(layer.mixer, AttentionSpec):
        yield from _attention(layer.mixer, hidden, prefix + "attention.", index)
    else:
        yield from _delta_net(layer.mixer, hidden, prefix + "delta_net.", index)
    if layer.norms != "shared":
        second = "result_norm" if after else "mlp_norm"
        yield from _norm(prefix + second, hidden, bias=norm_bias, layer=index)
    if layer.mlp is not None:
        yield from _mlp(layer.mlp, hidden, prefix + "mlp.", index)
    if layer.experts is not None:
        place = "mlp." if layer.mlp is None else "experts."
        yield from _experts(layer.experts, hidden, prefix + place, index)
    if layer.sandwiched:
        names = ["attention_result_norm", "result_norm"]
        if layer.mlp is not None and layer.experts is not None:
            names += ["mlp_result_norm", "router_norm", "experts_norm", "experts_result_norm"]
        for name in names:
            yield from _norm(prefix + name, hidden, layer=index)
    if layer.scaled:
        yield from _norm(prefix + "scale", 1, layer=index)


def _layer_inputs(spec: LayerInputSpec, num_layers: int, hidden: int) -> Iterator[ModelTensor]:
    width, prefix = num_layers * spec.size, "layer_inputs."
    table = (spec.vocab_size, width)
    yield ModelTensor(prefix + "embed.weight", table, "table", _rows(spec.vocab_size))
    yield ModelTensor(prefix + "projection.weight", (width, hidden), "linear")
    yield from _norm(prefix + "norm", spec.size)
    for index in range(num_layers):
        layer = f"layers.{index}."
        gate, projection = layer + "input.gate.weight", layer + "input.projection.weight"
        yield ModelTensor(gate, (spec.size, hidden), "linear", layer=index)
        yield ModelTensor(projection, (hidden, spec.size), "linear", layer=index)
        yield from _norm(layer + "input_result_norm", hidden, layer=index)


def _altup(spec: AltUpSpec, num_layers: int, hidden: int) -> Iterator[ModelTensor]:
    count, rank = spec.num_streams, spec.laurel_rank
    for index in range(1, count):
        for name in ("expand", "join"):
            tensor = f"altup.{name}.{index - 1}.weight"
            yield ModelTensor(tensor, (hidden, hidden), "linear")
    for index in range(num_layers):
        layer = f"layers.{index}."
        mixing = {"router": (count, hidden), "predict": (count**2, count), "correct": (count,) * 2}
        for name, shape in mixing.items():
            yield ModelTensor(f"{layer}altup.{name}.weight", shape, "router", layer=index)
        yield from _norm(layer + "altup.router_norm", hidden, layer=index)
        if spec.scaled:
            yield from _norm(layer + "altup.scale", hidden, layer=index)
        for name, shape in {"down": (rank, hidden), "up": (hidden, rank)}.items():
            yield ModelTensor(f"{layer}laurel.{name}.weight", shape, "linear", layer=index)
        yield from _norm(layer + "laurel.norm", hidden, layer=index)


def _attention(
    spec: AttentionSpec, hidden: int, prefix: str, index: int | None
) -> Iterator[ModelTensor]:
    heads = Part(spec.num_heads * spec.head_dim, spec.num_heads)
    shared = Part(spec.num_kv_heads * spec.head_dim, spec.num_kv_heads)
    keys_and_values = (shared,) if spec.values_are_keys else (shared, shared)
    parts: tuple[Part, ...] = (heads, *(() if spec.borrows else keys_and_values))
    parts += (heads,) if spec.output_gate else ()
    yield from _linear(prefix + "qkv", parts, hidden, spec.qkv_bias, layer=index)
    yield from _linear(
        prefix + "output", _rows(hidden), heads.rows, spec.output_bias,
        column_units=spec.num_heads, layer=index,
    )  # fmt: skip
    if spec.qk_norm_whole:
        for name, part in (("q_norm", heads), ("k_norm", shared)):
            yield ModelTensor(
                f"{prefix}{name}.weight", (part.rows,), "vector", (part,), layer=index
            )
    elif spec.qk_norm:
        for name in ("q_norm",) if spec.borrows else ("q_norm", "k_norm"):
            yield from _norm(prefix + name, spec.head_dim, layer=index)
    if spec.sinks:
        each = (Part(spec.num_heads, spec.num_heads),)
        yield ModelTensor(prefix + "sinks.weight", (spec.num_heads,), "vector", each, layer=index)


def _latent_attention(
    spec: AttentionSpec, latent: LatentSpec, hidden: int, prefix: str, index: int | None
) -> Iterator[ModelTensor]:
    """Its short vectors every device makes by itself."""
    heads = spec.num_heads
    queries = (Part(heads * latent.query_dim, heads),)
    if latent.query_rank is None:
        yield from _linear(prefix + "q", queries, hidden, layer=index)
    else:
        shape = (latent.query_rank, hidden)
        yield ModelTensor(prefix + "q_a.weight", shape, "linear", layer=index)
        yield from _norm(prefix + "q_norm", latent.query_rank, layer=index)
        yield from _linear(prefix + "q_b", queries, latent.query_rank, layer=index)
    yield ModelTensor(prefix + "kv_a.weight", (spec.head_dim, hidden), "linear", layer=index)
    yield from _norm(prefix + "kv_norm", latent.rank, layer=index)
    for name, *sizes in (
        ("k_b", latent.rank, latent.key_dim),
        ("v_b", latent.value_dim, latent.rank),
    ):
        yield ModelTensor(
            f"{prefix}{name}.weight", (heads, *sizes), "per_head", (Part(heads, heads),),
            layer=index,
        )  # fmt: skip
    yield from _linear(
        prefix + "output", _rows(hidden), heads * latent.value_dim, column_units=heads, layer=index
    )


def _delta_net(
    spec: DeltaNetSpec, hidden: int, prefix: str, index: int | None
) -> Iterator[ModelTensor]:
    keys = Part(spec.num_key_heads * spec.key_head_dim, spec.num_key_heads)
    values = Part(spec.num_value_heads * spec.value_head_dim, spec.num_value_heads)
    heads = Part(spec.num_value_heads, spec.num_value_heads)
    # q, k, v, the output gate, the writing strength and the decay.
    parts = (keys, keys, values, values, heads, heads)
    yield from _linear(prefix + "input", parts, hidden, layer=index)
    channels = (keys, keys, values)
    width = (sum(part.rows for part in channels), spec.conv_width)
    yield ModelTensor(prefix + "conv.weight", width, "conv", channels, layer=index)
    for name in ("rate", "bias"):
        yield ModelTensor(f"{prefix}gates.{name}", (heads.rows,), "vector", (heads,), layer=index)
    yield from _norm(prefix + "norm", spec.value_head_dim, layer=index)
    yield from _linear(
        prefix + "output", _rows(hidden), values.rows, column_units=values.units,
        column_runs=spec.num_value_heads // spec.num_key_heads if spec.tiled else 1, layer=index,
    )  # fmt: skip


def _mlp(spec: MlpSpec, hidden: int, prefix: str, index: int | None) -> Iterator[ModelTensor]:
    wide = spec.intermediate_size
    name, parts = ("gate_up", _rows(wide, wide)) if spec.gated else ("up", _rows(wide))
    yield from _linear(prefix + name, parts, hidden, spec.bias, layer=index)
    yield from _linear(
        prefix + "down", _rows(hidden), wide, spec.bias, column_units=wide, layer=index
    )


def _experts(spec: MoeSpec, hidden: int, prefix: str, index: int | None) -> Iterator[ModelTensor]:
    count, wide = spec.num_experts, spec.intermediate_size
    gates = int(spec.shared is not None and spec.shared.gated)
    yield ModelTensor(prefix + "router.weight", (count + gates, hidden), "router", layer=index)
    if spec.bias:
        yield ModelTensor(prefix + "router.bias", (count,), "vector", layer=index)
    if spec.corrected:
        yield from _norm(prefix + "correction", count, layer=index)
    if spec.expert_scales:
        yield from _norm(prefix + "scales", count, layer=index)
    for name, parts, columns, units in (
        ("gate_up", _rows(wide, wide), hidden, 0),
        ("down", _rows(hidden), wide, wide),
    ):
        rows = sum(part.rows for part in parts)
        split = () if units else parts
        yield ModelTensor(
            f"{prefix}{name}.weight", (count, rows, columns), "experts", split, units, index
        )
        if spec.bias:
            yield ModelTensor(f"{prefix}{name}.bias", (count, rows), "experts", split, layer=index)
    if spec.shared is not None:
        shared = MlpSpec(spec.shared.intermediate_size)
        yield from _mlp(shared, hidden, prefix + "shared.", index)


def _draft_head(
    spec: DraftHeadSpec, hidden: int, vocabulary: tuple[Part, ...]
) -> Iterator[ModelTensor]:
    if spec.eagle3 is not None:
        yield from _eagle3_head(spec, spec.eagle3, hidden, vocabulary)
        return
    yield from _layer(spec.layer, hidden, _DRAFT_HEAD + "layer.", None)
    for half in ("embedding_fc", "hidden_fc"):
        yield from _linear(_DRAFT_HEAD + half, _rows(hidden), hidden)
    for name in ("embedding_norm", "hidden_norm", "norm"):
        yield from _norm(_DRAFT_HEAD + name, hidden)
    table = (vocabulary[0].rows, hidden)
    if spec.own_embedding:
        yield ModelTensor(_DRAFT_HEAD + "embed.weight", table, "embedding", vocabulary)
    if spec.own_output:
        yield ModelTensor(_DRAFT_HEAD + "head.weight", table, "head", vocabulary)


def _eagle3_head(
    spec: DraftHeadSpec, own: Eagle3Spec, model_hidden: int, vocabulary: tuple[Part, ...]
) -> Iterator[ModelTensor]:
    hidden, width, tokens = own.hidden_size, len(own.reads) * model_hidden, _rows(own.vocab_size)
    layer = _DRAFT_HEAD + "layer."
    for tensor in _layer(spec.layer, hidden, layer, None):
        # Attention reads embeddings beside the hidden states.
        twice = tensor.name == layer + "attention.qkv.weight"
        yield replace(tensor, shape=(tensor.shape[0], 2 * hidden)) if twice else tensor
    yield from _linear(_DRAFT_HEAD + "fc", _rows(hidden), width)
    for name in ("layer.hidden_norm", "norm"):
        yield from _norm(_DRAFT_HEAD + name, hidden)
    if own.norm_before_fc:
        yield from _norm(_DRAFT_HEAD + "read_norm", width)
    if spec.own_embedding:
        table = (vocabulary[0].rows, hidden)
        yield ModelTensor(_DRAFT_HEAD + "embed.weight", table, "embedding", vocabulary)
    if spec.own_output:
        yield ModelTensor(_DRAFT_HEAD + "head.weight", (own.vocab_size, hidden), "head", tokens)
    if own.mapped != "no":
        yield from _norm(_DRAFT_HEAD + "token_map", own.vocab_size)


def _scores(spec: ModelSpec) -> Iterator[ModelTensor]:
    labels, hidden = len(spec.pooling.labels), spec.hidden_size
    if not labels or spec.pooling.answers is not None:
        return
    if spec.encoder is None:
        yield from _linear("score", _rows(labels), hidden)
        return
    yield from _linear("dense", _rows(hidden), hidden, bias=spec.encoder.head_bias)
    if spec.encoder.head == "normed":
        yield from _norm("head_norm", hidden, bias=spec.encoder.norm_bias)
    yield from _linear("classifier", _rows(labels), hidden, bias=True)


def _vision(spec: VisionSpec, out_size: int) -> Iterator[ModelTensor]:
    """All of its layers have biases, but for norms that have none and that of the patches."""
    hidden, wide = spec.hidden_size, spec.intermediate_size
    heads, bias = Part(hidden, spec.num_heads), not spec.rms_norms
    yield ModelTensor("vision.patches.weight", (hidden, spec.patch_values), "vision")
    if spec.patch_bias:
        yield ModelTensor("vision.patches.bias", (hidden,), "vector")
    if spec.num_positions:
        yield ModelTensor("vision.positions.weight", (spec.num_positions, hidden), "table")
    up, parts = ("gate_up", _rows(wide, wide)) if spec.gated else ("up", _rows(wide))
    for index in range(spec.num_layers):
        block = f"vision.blocks.{index}."
        yield from _norm(block + "attention_norm", hidden, bias=bias)
        yield from _tower(block + "qkv", (heads, heads, heads), hidden)
        yield from _tower(block + "output", _rows(hidden), hidden, spec.num_heads)
        yield from _norm(block + "mlp_norm", hidden, bias=bias)
        yield from _tower(block + up, parts, hidden)
        yield from _tower(block + "down", _rows(hidden), wide, wide)
    if spec.pooled:
        yield from _norm("vision.norm", hidden, bias=True)
        yield from _norm("vision.token_norm", hidden)
        yield from _tower("vision.projection", _rows(out_size), hidden, bias=False)
        return
    yield from _merger("vision.merger.", spec, out_size, hidden)
    for index in range(len(spec.deepstack)):
        yield from _merger(f"vision.deepstack.{index}.", spec, out_size, hidden * spec.merge**2)


def _merger(prefix: str, spec: VisionSpec, out_size: int, normed: int) -> Iterator[ModelTensor]:
    merged = spec.hidden_size * spec.merge**2
    yield from _norm(prefix + "norm", normed, bias=not spec.rms_norms)
    yield from _tower(prefix + "up", _rows(merged), merged)
    yield from _tower(prefix + "down", _rows(out_size), merged, merged)


def _sandwiched_vision(spec: VisionSpec, out_size: int) -> Iterator[ModelTensor]:
    """None of its layers has biases."""
    hidden, wide = spec.hidden_size, spec.intermediate_size
    heads = Part(hidden, spec.num_heads)
    yield ModelTensor("vision.patches.weight", (hidden, spec.patch_values), "vision")
    yield ModelTensor("vision.positions.weight", (2, spec.num_positions, hidden), "table")
    for index in range(spec.num_layers):
        block = f"vision.blocks.{index}."
        for name in ("attention_norm", "attention_result_norm", "mlp_norm", "result_norm"):
            yield from _norm(block + name, hidden)
        for name in ("q_norm", "k_norm"):
            yield from _norm(block + name, spec.head_dim)
        if spec.clipped:
            yield from _clipped(block + "qkv", (hidden,) * 3, hidden)
            yield from _clipped(block + "output", (hidden,), hidden)
            yield from _clipped(block + "gate_up", (wide,) * 2, hidden)
            yield from _clipped(block + "down", (hidden,), wide)
            continue
        yield from _tower(block + "qkv", (heads, heads, heads), hidden, bias=False)
        yield from _tower(block + "output", _rows(hidden), hidden, spec.num_heads, bias=False)
        yield from _tower(block + "gate_up", _rows(wide, wide), hidden, bias=False)
        yield from _tower(block + "down", _rows(hidden), wide, wide, bias=False)
    if spec.standardized:
        yield from _norm("vision.token_mean", hidden)
        yield from _norm("vision.token_scale", hidden)
    yield from _tower("vision.projection", _rows(out_size), hidden, bias=False)


def _clipped(name: str, sizes: tuple[int, ...], columns: int) -> Iterator[ModelTensor]:
    """Linear layers side by side, each with four bounds."""
    for index, size in enumerate(sizes):
        part = f"{name}.parts.{index}."
        yield from _tower(part + "linear", _rows(size), columns, bias=False)
        yield from _norm(part + "clip", 4)


def _tower(
    name: str, parts: tuple[Part, ...], columns: int, column_units: int = 0, *, bias: bool = True
) -> Iterator[ModelTensor]:
    return _linear(name, parts, columns, bias, column_units=column_units, role="vision")


def parameter_count(spec: ModelSpec) -> int:
    """The number of parameters of the whole model, norms and biases included."""
    return sum(tensor.elements for tensor in model_tensors(spec))
