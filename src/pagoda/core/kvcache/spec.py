"""Which layers share a block table, and how large their blocks are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from pagoda.arch.recurrent import RecurrentSpec, Shape
from pagoda.arch.spec import ModelSpec
from pagoda.arch.stage import StageSpec

_ELEMENT_BYTES = {
    "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip
INT8_SCALE_BYTES = 4
"""The fp32 scale of an int8 row (one token's K or V of one head).

It lies in its row's block and moves with it, so that block ids mean the same in every type.
"""
Q4_BLOCK = 32
"""Dimensions of a row that share a scale in q4_0, at most: the last ones may be fewer."""
Q4_SCALE_BYTES = 2
ALIGNMENT = 64
"""Bytes: each part of a block begins at a multiple of them, where a cache line does."""


def row_bytes(head_dim: int, kv_dtype: str) -> int:
    """Bytes of one token's K (or V) of one head; `kv_dtype` as in `--kv-cache-dtype`."""
    if kv_dtype == "q4_0":
        return head_dim // 2 + -(-head_dim // Q4_BLOCK) * Q4_SCALE_BYTES
    scale = INT8_SCALE_BYTES if kv_dtype == "int8" else 0
    return head_dim * _ELEMENT_BYTES[kv_dtype] + scale


@dataclass(frozen=True)
class KVLayout:
    """How one layer's K and V lie in a block: what one kind of kernel reads."""

    keys: Literal["dimensions", "tokens"] = "dimensions"
    """V is [kv_heads, block_size, row]. K lies as V does, `tokens` one behind the other, or
    [kv_heads, row, block_size], so that keys are scored as vectors of one of their `dimensions`.
    A block has as many bytes in both."""
    block_size: int = 16
    """Tokens per block."""


@dataclass(frozen=True)
class KVGroupSpec:
    """Attention layers that keep KV alike, so that one block table serves them all."""

    kind: Literal["full", "sliding"]
    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    block_size: int
    """Tokens per block."""
    window: int | None = None
    """Tokens a query sees, itself included; None sees all."""
    kv_dtype: str = "bfloat16"
    keys: Literal["dimensions", "tokens"] = "dimensions"
    """As `KVLayout` has it."""
    borrowers: tuple[tuple[int, int], ...] = ()
    """Layers that keep nothing of their own, each with the one of `layers` whose part it reads."""
    latent: bool = False
    """Values are the keys: a block has no part for them."""
    most_layers: int = 0
    """Layers of the group in the stage of a pipeline that has most of them: blocks are as large in
    all stages, so that slabs are shared in one way."""

    @property
    def layout(self) -> KVLayout:
        return KVLayout(self.keys, self.block_size)

    @property
    def part_bytes(self) -> tuple[int, int]:
        """One layer's keys and values in a block."""
        rows = self.num_kv_heads * self.block_size
        size = _aligned(rows * row_bytes(self.head_dim, self.kv_dtype))
        return size, 0 if self.latent else size

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in all layers: keys, values, keys, values, ..."""
        return max(len(self.layers), self.most_layers) * sum(self.part_bytes)


@dataclass(frozen=True)
class StateGroupSpec:
    """Recurrent layers: a block is the state of all of them behind one token."""

    layers: tuple[int, ...]
    shapes: tuple[Shape, ...]
    """The parts of one layer's state, fp32 each."""
    block_size: int
    """States are kept for later behind multiples of so many tokens only."""
    most_layers: int = 0
    """As `KVGroupSpec` has it."""

    @property
    def part_bytes(self) -> tuple[int, ...]:
        """One layer's parts."""
        return tuple(_aligned(4 * prod(shape)) for shape in self.shapes)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in all layers: the first one's parts, the second one's, ..."""
        return max(len(self.layers), self.most_layers) * sum(self.part_bytes)


GroupSpec = KVGroupSpec | StateGroupSpec


def kv_groups(spec: ModelSpec, layout: KVLayout, kv_dtype: str = "bfloat16") -> list[GroupSpec]:
    """The model's groups: attention in the order of their first layers, then recurrent layers.
    Layers of a loaded draft head and of a draft model are among them, with the indices behind the
    last. Encoders have none. A stage has all groups of the model, be it without layers in some."""
    if spec.stage is not None:
        stage = spec.stage
        return [_of_stage(each, stage) for each in kv_groups(stage.whole, layout, kv_dtype)]
    keys, block_size = layout.keys, layout.block_size
    members: dict[tuple[Literal["full", "sliding"], int, int, int | None, bool], list[int]] = {}
    borrowers: dict[int, list[tuple[int, int]]] = {}
    recurrent: dict[tuple[Shape, ...], list[int]] = {}
    for index, layer in enumerate(spec.cached_layers):
        mixer = layer.mixer
        if isinstance(mixer, RecurrentSpec):
            recurrent.setdefault(mixer.state_shapes, []).append(index)
        elif mixer.borrows:
            borrowers.setdefault(index - mixer.borrows, []).append((index, index - mixer.borrows))
        elif mixer.kind != "encoder":
            window = mixer.window if mixer.kind == "sliding" else None
            latent = mixer.latent is not None
            key = (mixer.kind, mixer.num_kv_heads, mixer.head_dim, window, latent)
            members.setdefault(key, []).append(index)
    attention = [
        KVGroupSpec(
            kind,
            tuple(layers),
            num_kv_heads,
            head_dim,
            block_size,
            window,
            kv_dtype,
            keys,
            tuple(pair for layer in layers for pair in borrowers.get(layer, ())),
            latent,
        )
        for (kind, num_kv_heads, head_dim, window, latent), layers in members.items()
    ]
    states = [
        StateGroupSpec(tuple(layers), shapes, block_size) for shapes, layers in recurrent.items()
    ]
    return [*attention, *states]


def _of_stage(group: GroupSpec, stage: StageSpec) -> GroupSpec:
    own, most = stage.own_layers(group.layers), stage.most(group.layers)
    if isinstance(group, StateGroupSpec):
        return replace(group, layers=own, most_layers=most)
    pairs = [stage.own_layers(pair) for pair in group.borrowers]
    borrowers = tuple((pair[0], pair[1]) for pair in pairs if len(pair) == 2)
    return replace(group, layers=own, most_layers=most, borrowers=borrowers)


def attention_groups(groups: Sequence[GroupSpec]) -> list[KVGroupSpec]:
    return [group for group in groups if isinstance(group, KVGroupSpec)]


def state_groups(groups: Sequence[GroupSpec]) -> list[StateGroupSpec]:
    return [group for group in groups if isinstance(group, StateGroupSpec)]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
