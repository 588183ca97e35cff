"""From a checkpoint to a model that runs: strict, one pass, one tensor in memory at a time."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from math import prod
from typing import Any

import torch

from pagoda.arch.spec import TOWERS, ModelSpec, RopeSpec, WeightRule
from pagoda.base.errors import CapacityError, CheckpointError, ConfigError, UnsupportedModelError
from pagoda.kernels import ops
from pagoda.kernels.attention.select import AttentionBackends
from pagoda.layers.context import LayerContext, Parallel
from pagoda.layers.linear import Linear
from pagoda.layers.loading import LoadTarget, WeightedLayer, count, load_vector
from pagoda.layers.moe import ExpertMatrices, MixtureOfExperts
from pagoda.layers.rotary import RotaryTables
from pagoda.models.base import Model
from pagoda.models.dummy import DummyCheckpoint
from pagoda.models.pieces import Piece, pieces, transposed_bytes, valued
from pagoda.models.registry import MODELS
from pagoda.planner.attention import AttentionChoice, own_attention
from pagoda.planner.memory.assumed import Dummy
from pagoda.quant.base import ShardSource
from pagoda.quant.experts import PackedExpertFormat
from pagoda.quant.host import HostWeights
from pagoda.quant.streamed import StreamedExperts
from pagoda.weights.checkpoint import Checkpoint, TensorInfo
from pagoda.weights.formats import FORMATS, transposed
from pagoda.weights.kv_scales import is_kv_scale

Progress = Callable[[int, int], None]

# Names quoted in an error message: enough to see the pattern.
_QUOTED = 5


@dataclass(frozen=True)
class _Item:
    """One use of a checkpoint tensor."""

    piece: Piece
    target: LoadTarget
    layer: WeightedLayer | None
    """To be finalized when its last item is loaded."""
    param: str = ""
    """The layer's `weight` or `bias`."""


_Items = dict[str, list[_Item]]
_Waiting = dict[WeightedLayer | None, Callable[[], None]]
"""What makes room for a layer's matrix, when its first tensor is loaded."""


def build_model(
    spec: ModelSpec,
    checkpoint: Checkpoint | Dummy | None,
    *,
    dtype: torch.dtype,
    device: str | HostWeights | StreamedExperts,
    parallel: Parallel | None = None,
    progress: Progress | None = None,
    packed: bool = False,
    attention: AttentionChoice | None = None,
) -> Model:
    """Make the model of `spec` on `device` and load this rank's share of the checkpoint (all of
    it without `parallel`). A device may have some weights in the host's memory, a CPU some experts
    in files. Without `attention` the device's own kernels attend.

    A `Dummy` says what random weights look like, which are filled in in place of a checkpoint's;
    on the device `meta`, where nothing has memory, they are not.
    `progress` is called with bytes done and bytes in all. With `packed`, a device that has kernels
    for it keeps weights in the checkpoint's own bits; a CPU computes with fp32 activations then.
    Raises CheckpointError for a leftover, missing or misshapen tensor, UnsupportedModelError for a
    storage format that no layer can hold, ConfigError where layers do not divide among the ranks,
    CapacityError where memory is short.
    """
    if spec.architecture not in MODELS:
        raise UnsupportedModelError(
            f"The architecture {spec.architecture!r} is not supported yet; "
            f"{MODELS.nearest(spec.architecture)}."
        )
    host = device if isinstance(device, HostWeights) else None
    streamed = device if isinstance(device, StreamedExperts) else None
    device = device if isinstance(device, str) else device.device
    if not isinstance(checkpoint, Dummy):
        weights: Checkpoint = _complete(spec, checkpoint)
    packed = packed and ops.can_pack(device)
    native = packed and device == "cpu"
    computed = torch.float32 if native else dtype
    attention = attention or own_attention(torch.device(device).type)
    context = LayerContext(
        computed,
        device,
        parallel or Parallel(),
        RotaryTables(device),
        AttentionBackends.of(attention, torch.device(device), computed),
        packed,
    )
    model: Model = MODELS.get(spec.architecture)(spec, context)
    items = _items(model)
    if isinstance(checkpoint, Dummy):
        shapes = {name: uses[0].piece.shape for name, uses in items.items()}
        plain = getattr(torch, spec.dtype) if native else dtype
        weights = DummyCheckpoint(shapes, plain, checkpoint)
    for name, uses in items.items():
        for item in uses:
            _check_fits(weights.tensors[name], item, context.parallel.size)
    waiting = _create(model, weights, host)
    if streamed is not None:
        items = _stream(model, items, streamed)
    if device != "meta":
        _load(items, weights, waiting, progress)
    _read_in_turn(model)
    if host is not None:
        parts = [part for part in model.modules() if isinstance(part, Linear | MixtureOfExperts)]
        host.reserve(max(part.staging_bytes for part in parts))
    return model


def _complete(spec: ModelSpec, checkpoint: Checkpoint | None) -> Checkpoint:
    """The checkpoint, if it holds all that the model needs and nothing else."""
    if checkpoint is None:
        raise CheckpointError(
            "The model's folder holds no weights; fetch them, or pass --load-format dummy "
            "for random ones."
        )
    names = checkpoint.tensors
    spec = spec if spec.stage is None else spec.stage.whole
    wanted = {source for rule in spec.expanded_weights() for source in rule.sources} | _factors(
        spec
    )
    missing = [name for name in sorted(wanted) if name not in names]
    if missing:
        raise CheckpointError(
            f"The checkpoint lacks {_quoted(missing)} of {spec.architecture}. "
            "It is incomplete, or config.json belongs to another model."
        )
    leftover = [
        name
        for name in names
        if name not in wanted
        and not any(fnmatchcase(name, pattern) for pattern in spec.ignored_weights)
        and not is_kv_scale(name)
        and not _adds_nothing(checkpoint, name, wanted)
    ]
    if leftover:
        raise CheckpointError(
            f"The checkpoint holds {_quoted(leftover)}, which {spec.architecture} has no place "
            "for. Its architecture differs from what config.json or the GGUF metadata says."
        )
    return checkpoint


def _adds_nothing(checkpoint: Checkpoint, name: str, wanted: set[str]) -> bool:
    """Whether it is a bias of zeros, as AutoGPTQ gives every layer that it quantizes."""
    layer, stored = name.removesuffix(".bias"), checkpoint.tensors[name].name
    return layer != name and f"{layer}.weight" in wanted and not checkpoint.read(stored).any()


def _check_fits(info: TensorInfo, item: _Item, world_size: int) -> None:
    piece, target = item.piece, item.target
    folded = piece.folded and (prod(info.shape),) == piece.shape
    if not folded and not _same(info.shape, piece.shape):
        raise CheckpointError(
            f"Tensor {info.name} has the shape {list(info.shape)}, but the model's sizes make it "
            f"{list(piece.shape)}. config.json (or the GGUF metadata) belongs to another model."
        )
    block = FORMATS[info.type].block_elements
    if any(run.start % block or run.stop % block for run in target.columns or ()):
        raise ConfigError(
            f"Tensor {info.name} is stored in blocks of {block} columns ({info.type}), which "
            f"{world_size} devices cannot share; choose a smaller --tensor-parallel-size."
        )


def _same(found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """A matrix of one row may be a vector, in the file or in the model, a vector in the model one
    column in the file, and matrices that lie in one may be a stack in the file."""
    stacked = len(found) == 3 and (found[0] * found[1], found[2]) == wanted
    one_row = (1, *found) == wanted or found == (1, *wanted)
    return _flat(found) == _flat(wanted) or one_row or found == (*wanted, 1) or stacked


def _flat(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without the middle dimension of a convolution over one channel."""
    return (shape[0], shape[2]) if len(shape) == 3 and shape[1] == 1 else shape


def _items(model: Model) -> _Items:
    """Where each checkpoint tensor goes."""
    items: _Items = {}
    for rule in _rules(model):
        layer, param = _layer_of(model, rule)
        targets = layer.targets(param)
        for piece, target in zip(pieces(rule, targets), targets, strict=True):
            items.setdefault(piece.source, []).append(_Item(piece, target, layer, param))
    for table in model.context.rotary.tables.values():
        names = _factor_tensors(table.spec)
        factors = [torch.empty(table.spec.rotary_dim // 2) for _ in names]
        if factors:
            table.set_factors(*factors)
        for name, vector in zip(names, factors, strict=True):
            target = LoadTarget(tuple(vector.shape), partial(load_vector, vector))
            items.setdefault(name, []).append(_Item(Piece(name, target.shape), target, None))
    _check_all_filled(model)
    return items


def _create(model: Model, checkpoint: Checkpoint, host: HostWeights | None) -> _Waiting:
    """Make room for all matrices; nothing is touched yet, so on a CPU no memory is taken yet.

    Those of the host's memory have none before their turn: they pass through the device's.
    """
    waiting: _Waiting = {}
    for rule in _rules(model):
        layer, param = _layer_of(model, rule)
        if param != "weight":
            continue
        used = pieces(rule, layer.targets(param))
        storages = tuple(_storage(piece, checkpoint.tensors[piece.source]) for piece in used)
        make_room = partial(_make_room, layer, storages, rule.sources[0])
        if host is not None and rule.param in host.params:
            layer.host = host
            waiting[layer] = make_room
        else:
            make_room()
    return waiting


def _storage(piece: Piece, info: TensorInfo) -> str:
    return transposed(info.type) if piece.transposed else info.type


def _make_room(layer: WeightedLayer, storages: tuple[str, ...], source: str) -> None:
    try:
        layer.create(storages)
    except RuntimeError as error:  # torch's way of saying that memory is short
        raise CapacityError(
            f"There is no memory for {source} and the weights after it ({error}). "
            "Take a smaller model or a version with fewer bits per weight."
        ) from error


def _stream(model: Model, items: _Items, streamed: StreamedExperts) -> _Items:
    """Map the experts that files have, and have the others written to files. What is left to
    load."""
    found: set[WeightedLayer | None] = set()
    for rule in _rules(model):
        if rule.param not in streamed.params:
            continue
        layer, _ = _layer_of(model, rule)
        assert isinstance(layer, ExpertMatrices) and isinstance(layer.format, PackedExpertFormat)
        if streamed.find(rule.param, layer.format):
            found.add(layer)
        else:
            layer.keep = partial(streamed.keep, rule.param)
    left = {
        name: [item for item in uses if item.layer not in found or item.param == "bias"]
        for name, uses in items.items()
    }
    return {name: uses for name, uses in left.items() if uses}


def _read_in_turn(model: Model) -> None:
    """Tell each mixture which experts in files a step reads behind its own."""
    following: tuple[Any, ...] = ()
    mixtures = [layer for layer in model.modules() if isinstance(layer, MixtureOfExperts)]
    for layer in reversed(mixtures):
        up, down = layer.gate_up.format, layer.down.format
        if isinstance(up, PackedExpertFormat) and isinstance(down, PackedExpertFormat):
            down.next_streamed = following
            following = up.matrices + down.matrices if down.in_file else following


def _rules(model: Model) -> list[WeightRule]:
    """Rules for the layers that this rank has."""
    rules, sees = model.spec.expanded_weights(), model.context.parallel.sees
    return [rule for rule in rules if sees or not rule.param.startswith(TOWERS)]


def _layer_of(model: Model, rule: WeightRule) -> tuple[WeightedLayer, str]:
    path, _, param = rule.param.rpartition(".")
    layer = model.get_submodule(path)
    assert isinstance(layer, WeightedLayer), rule.param
    return layer, param


def _check_all_filled(model: Model) -> None:
    """A layer's parameter without a weight rule would run on uninitialised memory."""
    filled = {rule.param for rule in model.spec.expanded_weights()}
    for path, layer in model.named_modules():
        if isinstance(layer, WeightedLayer):
            unfilled = {f"{path}.{param}" for param in layer.params} - filled
            assert not unfilled, f"no weight rule fills {unfilled}"


def _load(
    items: _Items, checkpoint: Checkpoint, waiting: _Waiting, progress: Progress | None
) -> None:
    """Copy every tensor in the order of the file, so that a disk reads it from end to end."""
    pending = Counter(item.layer for uses in items.values() for item in uses)
    total = sum(checkpoint.tensors[name].nbytes for name in items)
    done = 0
    for name, info in checkpoint.tensors.items():
        if name not in items:
            continue
        for item in items[name]:
            if item.layer in waiting:
                waiting.pop(item.layer)()
            item.target.load(_source(checkpoint, info, item))
            pending[item.layer] -= 1
            if item.layer is not None and pending[item.layer] == 0:
                item.layer.finalize()
        checkpoint.release(name)
        done += info.nbytes
        if progress is not None:
            progress(done, total)


def _source(checkpoint: Checkpoint, info: TensorInfo, item: _Item) -> ShardSource:
    piece, target = item.piece, item.target
    source = ShardSource(
        info.type,
        target.shape[0] if target.rows is None else count(target.rows),
        prod(target.shape[1:]) if target.columns is None else count(target.columns),
        lambda: piece.read(checkpoint, info, target),
    )
    if piece.transposed:
        columns = info.shape[-1]
        return replace(
            source,
            storage=transposed(info.type),
            read=lambda: transposed_bytes(source.read(), info.type, columns),
        )
    if piece.value == "x":
        return source
    return replace(
        source, storage="F32", read=lambda: valued(source.read(), info.type, piece.value)
    )


def _factors(spec: ModelSpec) -> set[str]:
    ropes = {attention.rope for attention in spec.attentions if attention.rope is not None}
    return {name for rope in ropes for name in _factor_tensors(rope)}


def _factor_tensors(rope: RopeSpec) -> list[str]:
    names = (rope.factors_tensor, rope.long_factors_tensor)
    return [name for name in names if name is not None]


def _quoted(names: list[str]) -> str:
    more = f" and {len(names) - _QUOTED} more" if len(names) > _QUOTED else ""
    # Names come from the file: control characters must not reach the log.
    return f"{', '.join(ascii(name)[1:-1] for name in names[:_QUOTED])}{more}"
