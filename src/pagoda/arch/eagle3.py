"""EAGLE-3 heads (arXiv 2503.01840), as safetensors and GGUF files have them.

Facts: vLLM's llama_eagle3.py and its gpu_model_runner.py, SGLang's set_eagle3_layers_to_capture,
the `speculators` library's config, llama.cpp's src/models/eagle3.cpp and conversion/llama.py.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.names import Traits
from pagoda.arch.read import MAX_VOCAB, MAX_WIDTH, Reader
from pagoda.arch.spec import (
    AttentionSpec,
    DraftHeadSpec,
    Eagle3Spec,
    LayerSpec,
    ModelSpec,
    WeightRule,
)
from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.joined import HEAD_PREFIX

GGUF_ARCHITECTURE = "eagle3"
_PARAM = "draft_head."
_OTHER = "Take the head that was trained for this model."
# Lists of the target's tokens that the head knows, frequencies, and what only training needs.
_UNUSED = ("t2d", "*.rotary_emb.inv_freq", "verifier_*", "rope_freqs.weight")


def with_eagle3_head(
    model: ModelSpec,
    config: Mapping[str, Any] | None,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, TensorInfo],
    source: str,
) -> ModelSpec:
    """`model` with the head that config.json or GGUF metadata describes, from `source`, loaded;
    `tensors` are the head's.

    Raises CheckpointError for a file that is no such head or another model's, and
    UnsupportedModelError for a head of another form.
    """
    if "general.architecture" in metadata:
        if metadata["general.architecture"] != GGUF_ARCHITECTURE or "fc.weight" not in tensors:
            _refuse_file(source)
        head = _from_gguf(model, metadata, tensors, source)
    else:
        if config is None:
            raise CheckpointError(f"{source} has no config.json, which says how its head is built.")
        layer = _layer_prefix(tensors)
        if "fc.weight" not in tensors or layer + "hidden_norm.weight" not in tensors:
            _refuse_file(source)
        head = _from_config(model, config, tensors, source)
    _check_tables(model, head)
    unused = tuple(HEAD_PREFIX + name for name in _UNUSED)
    return replace(
        model, draft_head=head, drafts=True, ignored_weights=(*model.ignored_weights, *unused)
    )


def _refuse_file(source: str) -> NoReturn:
    raise CheckpointError(
        f"{source} is no EAGLE-3 head: such a head has fc.weight, and a layer with hidden_norm. "
        'Name another one, or write "method": "draft" for a whole model that guesses.'
    )


def _layer_prefix(names: Collection[str]) -> str:
    """What stands before the tensors of its one layer: the EAGLE repository says `midlayer`."""
    return "midlayer." if any(name.startswith("midlayer.") for name in names) else "layers.0."


def _from_config(
    model: ModelSpec, config: Mapping[str, Any], names: Collection[str], source: str
) -> DraftHeadSpec:
    """The library `speculators` puts the layer's sizes into a section of their own."""
    outer = Reader(config, f"config.json of {source}")
    nested = config.get("transformer_layer_config")
    sizes = dict(nested) if isinstance(nested, Mapping) else dict(config)
    given = {name: value for name, value in sizes.items() if value is not None}
    defaults = {"num_hidden_layers": 1, "max_position_embeddings": model.max_position}
    reader = Reader({**defaults, **given, "tie_word_embeddings": False}, f"config.json of {source}")
    bias = reader.flag("attention_bias", False)
    mlp_bias = reader.flag("mlp_bias", False)
    own = spec_from_config(
        reader, "EAGLE-3", Traits(qkv_bias=bias, output_bias=bias, mlp_bias=mlp_bias)
    )
    _check_one_layer(own, source)
    eagle_config = outer.section("eagle_config")
    if eagle_config is not None and not eagle_config.flag("use_aux_hidden_state", True):
        raise UnsupportedModelError(
            f"{source} reads its model's last layer alone (use_aux_hidden_state is false); only "
            "heads that read several layers are known here."
        )
    eagle3 = Eagle3Spec(
        source,
        _layers_read(model, outer, eagle_config, source),
        own.hidden_size,
        own.norm_eps,
        outer.integer("draft_vocab_size", MAX_VOCAB, own.vocab_size),
        "by offset" if "d2t" in names else "no",
        outer.flag("norm_before_residual", False),
        outer.flag("norm_before_fc", False),
    )
    _check_fits(model, own, source, outer.integer("target_hidden_size", MAX_WIDTH, 0, minimum=0))
    layer = _layer_prefix(names)
    sources = {
        "embed": "embed_tokens.weight",
        "head": "lm_head.weight",
        "norm": "norm.weight",
        "read_norm": "input_norm.weight",
        "hidden_norm": layer + "hidden_norm.weight",
    }
    return _head(own, eagle3, sources, ("model.layers.{layer}.", layer), names)


def _from_gguf(
    model: ModelSpec, metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], source: str
) -> DraftHeadSpec:
    where = f"GGUF metadata of {source}"
    reader = Reader(metadata, where, GGUF_ARCHITECTURE + ".")
    tokenizer = Reader(metadata, where, "tokenizer.ggml.")
    # Its q and k rows are interleaved, as Llama's.
    own = spec_from_gguf(reader, tokenizer, "EAGLE-3", Traits(), tensors, interleaved=True)
    _check_one_layer(own, source)
    older = reader.listed("extract_layers")  # the same, in older files
    eagle3 = Eagle3Spec(
        source,
        _checked(model, list(reader.listed("target_layers") or older), source),
        own.hidden_size,
        own.norm_eps,
        sum(tensors["d2t"].shape[:1]) if "d2t" in tensors else own.vocab_size,
        "by id" if "d2t" in tensors else "no",
        reader.flag("norm_before_residual", False),
        reader.flag("norm_before_fc", False),
    )
    _check_fits(model, own, source, reader.integer("target_hidden_size", MAX_WIDTH, 0, minimum=0))
    sources = {
        "embed": "token_embd.weight",
        "head": "output.weight",
        "norm": "output_norm.weight",
        "read_norm": "enc.output_norm.weight",
        "hidden_norm": "blk.0.attn_norm_2.weight",
    }
    return _head(own, eagle3, sources, ("blk.{layer}.", "blk.0."), tensors)


def _check_one_layer(own: ModelSpec, source: str) -> None:
    if len(own.layers) != 1:
        raise UnsupportedModelError(
            f"{source} is a head of {len(own.layers)} layers; those of one layer are known here."
        )


def _layers_read(
    model: ModelSpec, outer: Reader, eagle_config: Reader | None, source: str
) -> tuple[int, ...]:
    """vLLM's name at the top counts inputs of layers, as here; SGLang's in `eagle_config` counts
    the layers whose outputs are read."""
    name = "eagle_aux_hidden_state_layer_ids"
    given = list(outer.listed(name))
    if not given and eagle_config is not None:
        given = [id + 1 if type(id) is int else id for id in eagle_config.listed(name)]
    count = len(model.layers)
    return _checked(model, given or [2, count // 2, count - 3], source)


def _checked(model: ModelSpec, ids: list[Any], source: str) -> tuple[int, ...]:
    count = len(model.layers)
    right = all(type(id) is int and 1 <= id <= count for id in ids)
    if not ids or not right or len(set(ids)) < len(ids):
        listed = ", ".join(str(id)[:20] for id in ids[:8])
        raise CheckpointError(
            f"{source} reads what goes into layers [{listed}] of its model, and this one has "
            f"{count}, of which a head may read 1 to {count}, each once. {_OTHER}"
        )
    return tuple(ids)


def _check_fits(model: ModelSpec, own: ModelSpec, source: str, target_hidden: int) -> None:
    hidden = target_hidden or own.hidden_size
    if hidden != model.hidden_size:
        raise CheckpointError(
            f"{source} is made for a model with hidden states of {hidden:,} numbers, and this "
            f"model's have {model.hidden_size:,}. {_OTHER}"
        )
    if own.vocab_size != model.vocab_size:
        raise CheckpointError(
            f"{source} is made for a vocabulary of {own.vocab_size:,} tokens, and this model has "
            f"{model.vocab_size:,}. {_OTHER}"
        )


def _check_tables(model: ModelSpec, head: DraftHeadSpec) -> None:
    """What a head takes from its model has to be of its own size."""
    eagle3 = head.eagle3
    assert eagle3 is not None
    alike = eagle3.hidden_size == model.hidden_size
    same_tokens = eagle3.vocab_size == model.vocab_size
    lacks = []
    if not (head.own_embedding or alike):
        lacks.append("a token table")
    if not (head.own_output or (alike and same_tokens)):
        lacks.append("an output head")
    if eagle3.mapped == "no" and not same_tokens:
        lacks.append("d2t, which says what its tokens are")
    if lacks:
        raise CheckpointError(
            f"{eagle3.source} lacks {' and '.join(lacks)}, and its sizes are not those of its "
            f"model ({eagle3.hidden_size:,} numbers, {eagle3.vocab_size:,} tokens). Fetch it again."
        )


def _head(
    own: ModelSpec,
    eagle3: Eagle3Spec,
    sources: Mapping[str, str],
    layer_names: tuple[str, str],
    names: Collection[str],
) -> DraftHeadSpec:
    """`layer_names`: what stands before a layer's tensors in the rules of `own`, and in the file's
    names."""
    before, behind = layer_names
    rules = [
        replace(
            rule,
            param=rule.param.replace("layers.{layer}.", _PARAM + "layer."),
            sources=tuple(HEAD_PREFIX + behind + x.removeprefix(before) for x in rule.sources),
        )
        for rule in own.weights
        if "{layer}" in rule.param
    ]
    params = {
        "fc": "fc.weight",
        "norm": sources["norm"],
        "layer.hidden_norm": sources["hidden_norm"],
    }
    owns_embedding, owns_output = sources["embed"] in names, sources["head"] in names
    if owns_embedding:
        params["embed"] = sources["embed"]
    if owns_output:
        params["head"] = sources["head"]
    if eagle3.norm_before_fc:
        params["read_norm"] = sources["read_norm"]
    if eagle3.mapped != "no":
        params["token_map"] = "d2t"
    rules += [
        WeightRule(f"{_PARAM}{name}.weight", (HEAD_PREFIX + x,)) for name, x in params.items()
    ]
    return DraftHeadSpec(
        _with_own_factors(own.layers[0]),
        tuple(rules),
        (HEAD_PREFIX + "*",),
        own_embedding=owns_embedding,
        own_output=owns_output,
        eagle3=eagle3,
    )


def _with_own_factors(layer: LayerSpec) -> LayerSpec:
    """Its rotary divisors are a tensor of the head's file."""
    mixer = layer.mixer
    assert isinstance(mixer, AttentionSpec) and mixer.rope is not None
    if mixer.rope.factors_tensor is None:
        return layer
    rope = replace(mixer.rope, factors_tensor=HEAD_PREFIX + mixer.rope.factors_tensor)
    return replace(layer, mixer=replace(mixer, rope=rope))
