"""Every parameter that a loaded model holds, by its sizes alone: what else the planner counts
(parameters, bytes of a rank, bytes read for a token) follows from this list.

Names are those of the weight rules (`arch.spec.WeightRule.param`).
"""

from collections.abc import Iterator
from dataclasses import replace

from pagoda.arch.encoder import EncoderSpec
from pagoda.arch.hearing import AudioSpec
from pagoda.arch.latent import IndexerSpec, LatentSpec
from pagoda.arch.spec import (
    AttentionSpec,
    DraftHeadSpec,
    Eagle3Spec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
)
from pagoda.arch.stage import StageSpec
from pagoda.arch.streams import AltUpSpec, LayerInputSpec
from pagoda.arch.vision import MergerSpec, VisionSpec
from pagoda.planner.memory.mobile_net import mobile_net
from pagoda.planner.memory.recurrent import recurrent
from pagoda.planner.memory.tensor import DRAFT_HEAD, ModelTensor, Part, linear, norm, rows_of


def model_tensors(spec: ModelSpec) -> list[ModelTensor]:
    """Tensors of the whole model, tower, heads for scores and a loaded draft head included; a tied
    head is not there twice. Of a stage those that it has."""
    if spec.stage is not None:
        return _of_stage(model_tensors(spec.stage.whole), spec.stage)
    hidden, vocab = spec.hidden_size, spec.vocab_size
    vocabulary = (Part(vocab, vocab),)
    found = [ModelTensor("embed.weight", (vocab, hidden), "embedding", vocabulary)]
    norm_bias = spec.heard > 0 or (spec.encoder is not None and spec.encoder.norm_bias)
    if spec.encoder is not None:
        found += _encoder(spec.encoder, hidden)
    for index, layer in enumerate(spec.layers):
        found += _layer(layer, hidden, f"layers.{index}.", index, norm_bias)
    if spec.layer_inputs is not None:
        found += _layer_inputs(spec.layer_inputs, len(spec.layers), hidden)
    if spec.altup is not None:
        found += _altup(spec.altup, len(spec.layers), hidden)
    if spec.encoder is None or spec.encoder.final_norm:
        found += norm("norm", hidden, bias=norm_bias)
    if not spec.tie_word_embeddings and spec.encoder is None:
        found.append(ModelTensor("head.weight", (vocab, hidden), "head", vocabulary))
    found += _scores(spec)
    for index, dense in enumerate(spec.pooling.dense):
        name, rows = f"projections.{index}", rows_of(dense.out_features)
        found += linear(name, rows, dense.in_features, dense.bias)
    if spec.vision is not None:
        tower = _sandwiched_vision if spec.vision.pooled and spec.vision.gated else _vision
        if spec.vision.mobile_net is not None:
            tower = mobile_net
        found += tower(spec.vision, hidden)
    if spec.heard:
        found.append(ModelTensor("positions.weight", (spec.max_position, hidden), "table"))
    if spec.audio is not None:
        found += _audio(spec.audio, hidden)
    if spec.draft_head is not None and spec.drafts:
        found += _draft_head(spec.draft_head, hidden, vocabulary)
    return found


def _of_stage(tensors: list[ModelTensor], stage: StageSpec) -> list[ModelTensor]:
    first, found = stage.first, []
    for tensor in tensors:
        own = stage.own(tensor.name)
        if own is not None:
            layer = None if tensor.layer is None else tensor.layer - first
            found.append(replace(tensor, name=own, layer=layer))
    return found


def _encoder(spec: EncoderSpec, hidden: int) -> Iterator[ModelTensor]:
    for name, rows in (("positions", spec.num_positions), ("types", spec.num_token_types)):
        if rows:
            yield ModelTensor(f"{name}.weight", (rows, hidden), "table")
    if spec.embed_norm:
        yield from norm("embed_norm", hidden, bias=spec.norm_bias)


def _layer(
    layer: LayerSpec, hidden: int, prefix: str, index: int | None, norm_bias: bool = False
) -> Iterator[ModelTensor]:
    after = layer.norms == "after"
    if layer.norms != "mlp":
        first = "attention_result_norm" if after else "attention_norm"
        yield from norm(prefix + first, hidden, bias=norm_bias, layer=index)
    if isinstance(layer.mixer, AttentionSpec) and layer.mixer.latent is not None:
        yield from _latent_attention(
            layer.mixer, layer.mixer.latent, hidden, prefix + "attention.", index
        )
    elif isinstance(layer.mixer, AttentionSpec):
        yield from _attention(layer.mixer, hidden, prefix + "attention.", index)
    else:
        yield from recurrent(layer.mixer, hidden, prefix, index)
    if layer.norms != "shared" and layer.feeds_forward:
        second = "result_norm" if after else "mlp_norm"
        yield from norm(prefix + second, hidden, bias=norm_bias, layer=index)
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
            yield from norm(prefix + name, hidden, layer=index)
    if layer.scaled:
        yield from norm(prefix + "scale", 1, layer=index)


def _layer_inputs(spec: LayerInputSpec, num_layers: int, hidden: int) -> Iterator[ModelTensor]:
    width, prefix = num_layers * spec.size, "layer_inputs."
    table = (spec.vocab_size, width)
    yield ModelTensor(prefix + "embed.weight", table, "table", rows_of(spec.vocab_size))
    yield ModelTensor(prefix + "projection.weight", (width, hidden), "linear")
    yield from norm(prefix + "norm", spec.size)
    for index in range(num_layers):
        layer = f"layers.{index}."
        gate, projection = layer + "input.gate.weight", layer + "input.projection.weight"
        yield ModelTensor(gate, (spec.size, hidden), "linear", layer=index)
        yield ModelTensor(projection, (hidden, spec.size), "linear", layer=index)
        yield from norm(layer + "input_result_norm", hidden, layer=index)


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
        yield from norm(layer + "altup.router_norm", hidden, layer=index)
        if spec.scaled:
            yield from norm(layer + "altup.scale", hidden, layer=index)
        for name, shape in {"down": (rank, hidden), "up": (hidden, rank)}.items():
            yield ModelTensor(f"{layer}laurel.{name}.weight", shape, "linear", layer=index)
        yield from norm(layer + "laurel.norm", hidden, layer=index)


def _attention(
    spec: AttentionSpec, hidden: int, prefix: str, index: int | None
) -> Iterator[ModelTensor]:
    heads = Part(spec.num_heads * spec.head_dim, spec.num_heads)
    if spec.heard is not None:
        yield from linear(prefix + "q", (heads,), hidden, True, layer=index)
        yield from linear(prefix + "kv", (heads, heads), hidden, True, layer=index)
        yield from linear(prefix + "output", rows_of(hidden), heads.rows, True, layer=index)
        return
    shared = Part(spec.num_kv_heads * spec.head_dim, spec.num_kv_heads)
    keys_and_values = (shared,) if spec.values_are_keys else (shared, shared)
    parts: tuple[Part, ...] = (heads, *(() if spec.borrows else keys_and_values))
    parts += (heads,) if spec.output_gate else ()
    yield from linear(prefix + "qkv", parts, hidden, spec.qkv_bias, layer=index)
    yield from linear(
        prefix + "output", rows_of(hidden), heads.rows, spec.output_bias,
        column_units=spec.num_heads, layer=index,
    )  # fmt: skip
    if spec.qk_norm_whole:
        for name, part in (("q_norm", heads), ("k_norm", shared)):
            yield ModelTensor(
                f"{prefix}{name}.weight", (part.rows,), "vector", (part,), layer=index
            )
    elif spec.qk_norm:
        for name in ("q_norm",) if spec.borrows else ("q_norm", "k_norm"):
            yield from norm(prefix + name, spec.head_dim, layer=index)
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
        yield from linear(prefix + "q", queries, hidden, layer=index)
    else:
        shape = (latent.query_rank, hidden)
        yield ModelTensor(prefix + "q_a.weight", shape, "linear", layer=index)
        yield from norm(prefix + "q_norm", latent.query_rank, layer=index)
        yield from linear(prefix + "q_b", queries, latent.query_rank, layer=index)
    yield ModelTensor(prefix + "kv_a.weight", (latent.row_dim, hidden), "linear", layer=index)
    yield from norm(prefix + "kv_norm", latent.rank, layer=index)
    for name, *sizes in (
        ("k_b", latent.rank, latent.key_dim),
        ("v_b", latent.value_dim, latent.rank),
    ):
        yield ModelTensor(
            f"{prefix}{name}.weight", (heads, *sizes), "per_head", (Part(heads, heads),),
            layer=index,
        )  # fmt: skip
    if latent.indexer is not None and latent.indexer.own:
        yield from _indexer(latent, latent.indexer, hidden, prefix + "indexer.", index)
    yield from linear(
        prefix + "output",
        rows_of(hidden),
        heads * latent.value_dim,
        column_units=heads,
        layer=index,
    )


def _indexer(
    latent: LatentSpec, spec: IndexerSpec, hidden: int, prefix: str, index: int | None
) -> Iterator[ModelTensor]:
    assert latent.query_rank is not None
    queries = (spec.num_heads * spec.head_dim, latent.query_rank)
    yield ModelTensor(prefix + "q.weight", queries, "linear", layer=index)
    yield ModelTensor(prefix + "k.weight", (spec.head_dim, hidden), "linear", layer=index)
    yield from norm(prefix + "k_norm", spec.head_dim, bias=True, layer=index)
    yield ModelTensor(prefix + "weights.weight", (spec.num_heads, hidden), "linear", layer=index)


def _mlp(spec: MlpSpec, hidden: int, prefix: str, index: int | None) -> Iterator[ModelTensor]:
    wide = spec.intermediate_size
    name, parts = ("gate_up", rows_of(wide, wide)) if spec.gated else ("up", rows_of(wide))
    yield from linear(prefix + name, parts, hidden, spec.bias, layer=index)
    yield from linear(
        prefix + "down", rows_of(hidden), wide, spec.bias, column_units=wide, layer=index
    )


def _experts(spec: MoeSpec, hidden: int, prefix: str, index: int | None) -> Iterator[ModelTensor]:
    count, wide = spec.num_experts, spec.intermediate_size
    gates = int(spec.shared is not None and spec.shared.gated)
    yield ModelTensor(prefix + "router.weight", (count + gates, hidden), "router", layer=index)
    if spec.bias:
        yield ModelTensor(prefix + "router.bias", (count,), "vector", layer=index)
    if spec.corrected:
        yield from norm(prefix + "correction", count, layer=index)
    if spec.expert_scales:
        yield from norm(prefix + "scales", count, layer=index)
    for name, parts, columns, units in (
        ("gate_up", rows_of(*([wide] * (2 if spec.gated else 1))), hidden, 0),
        ("down", rows_of(hidden), wide, wide),
    ):
        rows = sum(part.rows for part in parts)
        split = () if units else parts
        yield ModelTensor(
            f"{prefix}{name}.weight", (count, rows, columns), "experts", split, units, index
        )
        if spec.bias:
            yield ModelTensor(f"{prefix}{name}.bias", (count, rows), "experts", split, layer=index)
    if spec.shared is not None:
        shared = MlpSpec(spec.shared.intermediate_size, gated=spec.gated)
        yield from _mlp(shared, hidden, prefix + "shared.", index)


def _draft_head(
    spec: DraftHeadSpec, hidden: int, vocabulary: tuple[Part, ...]
) -> Iterator[ModelTensor]:
    if spec.eagle3 is not None:
        yield from _eagle3_head(spec, spec.eagle3, hidden, vocabulary)
        return
    yield from _layer(spec.layer, hidden, DRAFT_HEAD + "layer.", None)
    for half in ("embedding_fc", "hidden_fc"):
        yield from linear(DRAFT_HEAD + half, rows_of(hidden), hidden)
    for name in ("embedding_norm", "hidden_norm", "norm"):
        yield from norm(DRAFT_HEAD + name, hidden)
    table = (vocabulary[0].rows, hidden)
    if spec.own_embedding:
        yield ModelTensor(DRAFT_HEAD + "embed.weight", table, "embedding", vocabulary)
    if spec.own_output:
        yield ModelTensor(DRAFT_HEAD + "head.weight", table, "head", vocabulary)


def _eagle3_head(
    spec: DraftHeadSpec, own: Eagle3Spec, model_hidden: int, vocabulary: tuple[Part, ...]
) -> Iterator[ModelTensor]:
    hidden, width, tokens = own.hidden_size, len(own.reads) * model_hidden, rows_of(own.vocab_size)
    layer = DRAFT_HEAD + "layer."
    for tensor in _layer(spec.layer, hidden, layer, None):
        # Attention reads embeddings beside the hidden states.
        twice = tensor.name == layer + "attention.qkv.weight"
        yield replace(tensor, shape=(tensor.shape[0], 2 * hidden)) if twice else tensor
    yield from linear(DRAFT_HEAD + "fc", rows_of(hidden), width)
    for name in ("layer.hidden_norm", "norm"):
        yield from norm(DRAFT_HEAD + name, hidden)
    if own.norm_before_fc:
        yield from norm(DRAFT_HEAD + "read_norm", width)
    if spec.own_embedding:
        table = (vocabulary[0].rows, hidden)
        yield ModelTensor(DRAFT_HEAD + "embed.weight", table, "embedding", vocabulary)
    if spec.own_output:
        yield ModelTensor(DRAFT_HEAD + "head.weight", (own.vocab_size, hidden), "head", tokens)
    if own.mapped != "no":
        yield from norm(DRAFT_HEAD + "token_map", own.vocab_size)


def _scores(spec: ModelSpec) -> Iterator[ModelTensor]:
    labels, hidden = len(spec.pooling.labels), spec.hidden_size
    if not labels or spec.pooling.answers is not None:
        return
    if spec.encoder is None:
        yield from linear("score", rows_of(labels), hidden)
        return
    yield from linear("dense", rows_of(hidden), hidden, bias=spec.encoder.head_bias)
    if spec.encoder.head == "normed":
        yield from norm("head_norm", hidden, bias=spec.encoder.norm_bias)
    yield from linear("classifier", rows_of(labels), hidden, bias=True)


def _vision(spec: VisionSpec, out_size: int) -> Iterator[ModelTensor]:
    hidden, wide = spec.hidden_size, spec.intermediate_size
    heads, bias, biased = Part(hidden, spec.num_heads), not spec.rms_norms, spec.block_bias
    yield ModelTensor("vision.patches.weight", (hidden, spec.patch_values), "vision")
    if spec.patch_bias:
        yield ModelTensor("vision.patches.bias", (hidden,), "vector")
    if spec.num_positions:
        yield ModelTensor("vision.positions.weight", (spec.num_positions, hidden), "table")
    if spec.class_token:
        yield from norm("vision.class_token", hidden)
        yield from norm("vision.class_position", hidden)
    if spec.patch_norm:
        yield from norm("vision.patch_norm", hidden, bias=bias)
    up, parts = ("gate_up", rows_of(wide, wide)) if spec.gated else ("up", rows_of(wide))
    for index in range(spec.num_layers):
        block = f"vision.blocks.{index}."
        yield from norm(block + "attention_norm", hidden, bias=bias)
        qkv_bias = biased and spec.qkv_bias
        yield from _tower(block + "qkv", (heads, heads, heads), hidden, bias=qkv_bias)
        names = ("q_norm", "k_norm") if spec.qk_norm else ()
        for name in (*names, *(("attention_scale", "scale") if spec.scaled else ())):
            yield from norm(block + name, hidden)
        yield from _tower(block + "output", rows_of(hidden), hidden, spec.num_heads, bias=biased)
        yield from norm(block + "mlp_norm", hidden, bias=bias)
        yield from _tower(block + up, parts, hidden, bias=biased)
        yield from _tower(block + "down", rows_of(hidden), wide, wide, bias=biased)
    if spec.pooled:
        yield from norm("vision.norm", hidden, bias=True)
        yield from norm("vision.token_norm", hidden)
        yield from _tower("vision.projection", rows_of(out_size), hidden, bias=False)
        return
    if spec.tiled:
        yield from norm("vision.row_end", hidden)
        yield from norm("vision.whole_begin", hidden)
        yield from _tower("vision.up", rows_of(out_size), hidden)
        yield from _tower("vision.down", rows_of(out_size), out_size, out_size)
        return
    if spec.final_norm:
        yield from norm("vision.norm", hidden, bias=bias)
    if spec.adapter is not None:
        size, prefix = spec.adapter, "vision.merger."
        yield from _tower(prefix + "up", rows_of(size), hidden * spec.merge**2, bias=False)
        yield from _tower(prefix + "down", rows_of(size), size, size, bias=False)
        yield from _tower(prefix + "projection", rows_of(out_size), size, bias=False)
        return
    if spec.merger is not None:
        yield from _narrow_merger("vision.merger.", spec, spec.merger, out_size)
        return
    yield from _merger("vision.merger.", spec, out_size, hidden)
    for index in range(len(spec.deepstack)):
        yield from _merger(f"vision.deepstack.{index}.", spec, out_size, hidden * spec.merge**2)


def _merger(prefix: str, spec: VisionSpec, out_size: int, normed: int) -> Iterator[ModelTensor]:
    merged = spec.hidden_size * spec.merge**2
    yield from norm(prefix + "norm", normed, bias=not spec.rms_norms)
    yield from _tower(prefix + "up", rows_of(merged), merged)
    yield from _tower(prefix + "down", rows_of(out_size), merged, merged)


def _narrow_merger(
    prefix: str, spec: VisionSpec, merger: MergerSpec, out_size: int
) -> Iterator[ModelTensor]:
    hidden, inner = spec.hidden_size, spec.hidden_size * spec.merge**2
    if merger.reduced:
        yield from norm(prefix + "norm", hidden)
        yield from _tower(prefix + "reduce", rows_of(hidden), inner, inner, bias=False)
        inner = hidden
    else:
        yield from norm(prefix + "norm", inner, bias=True)
    yield from _tower(prefix + "up", rows_of(out_size), inner, bias=merger.bias)
    yield from _tower(prefix + "down", rows_of(out_size), out_size, out_size, bias=merger.bias)


def _sandwiched_vision(spec: VisionSpec, out_size: int) -> Iterator[ModelTensor]:
    """None of its layers has biases."""
    hidden, wide = spec.hidden_size, spec.intermediate_size
    heads = Part(hidden, spec.num_heads)
    yield ModelTensor("vision.patches.weight", (hidden, spec.patch_values), "vision")
    yield ModelTensor("vision.positions.weight", (2, spec.num_positions, hidden), "table")
    for index in range(spec.num_layers):
        block = f"vision.blocks.{index}."
        for name in ("attention_norm", "attention_result_norm", "mlp_norm", "result_norm"):
            yield from norm(block + name, hidden)
        for name in ("q_norm", "k_norm"):
            yield from norm(block + name, spec.head_dim)
        if spec.clipped:
            yield from _clipped(block + "qkv", (hidden,) * 3, hidden)
            yield from _clipped(block + "output", (hidden,), hidden)
            yield from _clipped(block + "gate_up", (wide,) * 2, hidden)
            yield from _clipped(block + "down", (hidden,), wide)
            continue
        yield from _tower(block + "qkv", (heads, heads, heads), hidden, bias=False)
        yield from _tower(block + "output", rows_of(hidden), hidden, spec.num_heads, bias=False)
        yield from _tower(block + "gate_up", rows_of(wide, wide), hidden, bias=False)
        yield from _tower(block + "down", rows_of(hidden), wide, wide, bias=False)
    if spec.standardized:
        yield from norm("vision.token_mean", hidden)
        yield from norm("vision.token_scale", hidden)
    yield from _tower("vision.projection", rows_of(out_size), hidden, bias=False)


def _audio(spec: AudioSpec, out_size: int) -> Iterator[ModelTensor]:
    hidden, wide = spec.hidden_size, spec.intermediate_size
    yield from _tower("audio.first", rows_of(hidden), 3 * spec.num_mels)
    yield from _tower("audio.second", rows_of(hidden), 3 * hidden)
    yield ModelTensor("audio.positions.weight", (spec.num_positions, hidden), "table")
    heads = Part(hidden, spec.num_heads)
    for index in range(spec.num_layers):
        block = f"audio.blocks.{index}."
        yield from norm(block + "attention_norm", hidden, bias=True)
        yield from _tower(block + "qkv", (heads, heads, heads), hidden)
        yield from _tower(block + "output", rows_of(hidden), hidden, spec.num_heads)
        yield from norm(block + "mlp_norm", hidden, bias=True)
        yield from _tower(block + "up", rows_of(wide), hidden)
        yield from _tower(block + "down", rows_of(hidden), wide, wide)
    yield from norm("audio.norm", hidden, bias=True)
    if spec.projected:
        yield from _tower("audio.projection", rows_of(out_size), hidden)
    if spec.deep:
        stack = spec.stacked * hidden
        yield from _tower("audio.projection.up", rows_of(out_size), stack, bias=False)
        yield from _tower("audio.projection.down", rows_of(out_size), out_size, bias=False)


def _clipped(name: str, sizes: tuple[int, ...], columns: int) -> Iterator[ModelTensor]:
    """Linear layers side by side, each with four bounds."""
    for index, size in enumerate(sizes):
        part = f"{name}.parts.{index}."
        yield from _tower(part + "linear", rows_of(size), columns, bias=False)
        yield from norm(part + "clip", 4)


def _tower(
    name: str, parts: tuple[Part, ...], columns: int, column_units: int = 0, *, bias: bool = True
) -> Iterator[ModelTensor]:
    return linear(name, parts, columns, bias, column_units=column_units, role="vision")


def parameter_count(spec: ModelSpec) -> int:
    """The number of parameters of the whole model, norms and biases included."""
    return sum(tensor.elements for tensor in model_tensors(spec))
