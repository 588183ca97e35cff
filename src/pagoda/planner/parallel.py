"""A model as one device of several sees it: its share of heads and layers."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from pagoda.arch.recurrent import RecurrentSpec
from pagoda.arch.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec
from pagoda.arch.stage import stage_of
from pagoda.base.errors import ConfigError
from pagoda.base.facts import DeviceFacts
from pagoda.config.engine import EngineConfig
from pagoda.planner.memory.tensors import model_tensors
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.formats import FORMATS


def rank_spec(spec: ModelSpec, tensor_parallel: int) -> ModelSpec:
    """The share of one device that others share layers with.

    The vocabulary, the vision tower and all widths between layers stay whole. ConfigError where
    heads or experts cannot be dealt out equally.
    """
    if tensor_parallel == 1:
        return spec
    stage = spec.stage
    if stage is not None:
        return stage_of(rank_spec(stage.whole, tensor_parallel), stage.cuts, stage.index)
    layers = tuple(_layer(layer, tensor_parallel) for layer in spec.layers)
    head = spec.draft_head
    if head is not None:
        head = replace(head, layer=_layer(head.layer, tensor_parallel))
    return replace(spec, layers=layers, draft_head=head)


def check_split(spec: ModelSpec, tensors: Mapping[str, TensorInfo], size: int) -> None:
    """ConfigError where `size` devices cannot deal out heads and experts equally, or the columns of
    a matrix in whole blocks."""
    if size == 1:
        return
    if spec.heard:
        raise ConfigError(
            "Models that write down sounds run on one device here; leave "
            "--tensor-parallel-size out."
        )
    rank_spec(spec, size)
    runs = {
        tensor.name: tensor.column_runs
        for tensor in model_tensors(spec)
        if tensor.role == "linear" and tensor.column_units
    }
    for rule in spec.expanded_weights():
        for info in (tensors[name] for name in rule.sources if name in tensors):
            if rule.param in runs:
                _check_columns(info, runs[rule.param], size)


def _check_columns(info: TensorInfo, runs: int, size: int) -> None:
    columns, block = info.shape[-1], FORMATS[info.type].block_elements
    if columns % (runs * size * block):
        stored = "" if block == 1 else f" in blocks of {block} ({info.type})"
        raise ConfigError(
            f"Tensor {info.name} has {columns:,} columns{stored}, which cannot be split "
            f"over {size} devices; choose a smaller --tensor-parallel-size."
        )


def can_split(spec: ModelSpec, tensors: Mapping[str, TensorInfo], size: int) -> bool:
    """Whether `check_split` finds nothing wrong."""
    try:
        check_split(spec, tensors, size)
    except ConfigError:
        return False
    return True


def most_ranks(spec: ModelSpec, tensors: Mapping[str, TensorInfo], count: int) -> int:
    """The most of `count` devices that can share the model."""
    return next(size for size in range(count, 0, -1) if can_split(spec, tensors, size))


def machine_part(
    config: EngineConfig, facts: DeviceFacts, size: int
) -> tuple[EngineConfig, DeviceFacts]:
    """One of `size` equal parts of a machine; `--threads` counts those of all of them."""
    threads = config.device.threads
    if isinstance(threads, int):
        device = replace(config.device, threads=max(1, threads // size))
        config = replace(config, device=device)
    return config, replace(
        facts,
        free_memory=facts.free_memory // size,
        total_memory=facts.total_memory // size,
        num_threads=max(1, facts.num_threads // size),
        nodes=(),
    )


def replica_part(config: EngineConfig, facts: DeviceFacts) -> tuple[EngineConfig, DeviceFacts]:
    """What one of several replicas may count on: a part of a CPU, or GPUs of its own and a part of
    their host."""
    size = config.parallel.data_parallel_size
    if size == 1:
        return config, facts
    config, part = machine_part(config, facts, size)
    if facts.device == "cpu":
        return config, part
    host = None if facts.host_memory is None else facts.host_memory // size
    return config, replace(facts, num_threads=part.num_threads, host_memory=host)


@cache  # a model has many layers and few kinds of them
def _layer(layer: LayerSpec, size: int) -> LayerSpec:
    mixer = layer.mixer
    return replace(
        layer,
        mixer=_attention(mixer, size)
        if isinstance(mixer, AttentionSpec)
        else _recurrent(mixer, size),
        mlp=None if layer.mlp is None else _mlp(layer.mlp, size),
        experts=None if layer.experts is None else _experts(layer.experts, size),
    )


def _attention(spec: AttentionSpec, size: int) -> AttentionSpec:
    heads, kv_heads = spec.num_heads, spec.num_kv_heads
    if kv_heads < size and size % kv_heads:
        fits = [
            n for n in range(1, heads + 1) if not (heads % n or (kv_heads % n and n % kv_heads))
        ]
        raise ConfigError(
            f"{kv_heads} KV heads cannot be repeated over {size} devices; the heads of this model "
            f"allow a --tensor-parallel-size of {', '.join(map(str, fits))}."
        )
    shared = 1 if kv_heads < size else _divided(kv_heads, size, "KV heads")
    return replace(spec, num_heads=_divided(heads, size, "attention heads"), num_kv_heads=shared)


def _recurrent(spec: RecurrentSpec, size: int) -> RecurrentSpec:
    parts = {name: _divided(getattr(spec, name), size, what) for name, what in spec.splits.items()}
    return replace(spec, **parts)


def _mlp(spec: MlpSpec, size: int) -> MlpSpec:
    return replace(spec, intermediate_size=-(-spec.intermediate_size // size))


def _experts(spec: MoeSpec, size: int) -> MoeSpec:
    # The router still sees all of them, and a token may meet all its experts on one device.
    shared = spec.shared
    if shared is not None:
        shared = replace(shared, intermediate_size=-(-shared.intermediate_size // size))
    own = _divided(spec.num_experts, size, "experts")
    return replace(spec, num_experts=own, num_chosen_from=spec.num_experts, shared=shared)


def _divided(count: int, size: int, what: str) -> int:
    if count % size:
        raise ConfigError(
            f"{count} {what} cannot be split over {size} devices; choose a "
            "--tensor-parallel-size that divides it."
        )
    return count // size
