"""Which layers share a block table, and how large their blocks are."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from pagoda.arch.spec import DeltaNetSpec, ModelSpec

_ELEMENT_BYTES = {
    "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip
INT8_SCALE_BYTES = 4
"""The fp32 scale of an int8 row (one token's K or V of one head).

It lies in its row's block and moves with it, so that block ids mean the same in every type.
"""
ALIGNMENT = 64
"""Bytes: each part of a block begins at a multiple of them, where a cache line does."""


def row_bytes(head_dim: int, kv_dtype: str) -> int:
    """Bytes of one token's K (or V) of one head; `kv_dtype` as in `--kv-cache-dtype`."""
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
        return len(self.layers) * sum(self.part_bytes)


@dataclass(frozen=True)
class StateGroupSpec:
    """Recurrent layers: a block is the state of all of them behind one token."""

    layers: tuple[int, ...]
    conv_shape: tuple[int, ...]
    """fp32, of one layer."""
    state_shape: tuple[int, ...]
    """fp32, of one layer."""
    block_size: int
    """States are kept for later behind multiples of so many tokens only."""

    @property
    def part_bytes(self) -> tuple[int, int]:
        """One layer's convolution and state."""
        return _aligned(4 * prod(self.conv_shape)), _aligned(4 * prod(self.state_shape))

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in all layers: convolution, state, convolution, state, ..."""
        return len(self.layers) * sum(self.part_bytes)


GroupSpec = KVGroupSpec | StateGroupSpec


def kv_groups(spec: ModelSpec, layout: KVLayout, kv_dtype: str = "bfloat16") -> list[GroupSpec]:
    """The model's groups: attention in the order of their first layers, then recurrent layers.
    Layers of a loaded draft head and of a draft model are among them, with the indices behind the
    last. Encoders have none."""
    keys, block_size = layout.keys, layout.block_size
    members: dict[tuple[Literal["full", "sliding"], int, int, int | None, bool], list[int]] = {}
    borrowers: dict[int, list[tuple[int, int]]] = {}
    recurrent: dict[DeltaNetSpec, list[int]] = {}
    for index, layer in enumerate(spec.cached_layers):
        mixer = layer.mixer
        if isinstance(mixer, DeltaNetSpec):
            recurrent.setdefault(mixer, []).append(index)
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
    states = [_state_group(mixer, layers, block_size) for mixer, layers in recurrent.items()]
    return [*attention, *states]


def attention_groups(groups: Sequence[GroupSpec]) -> list[KVGroupSpec]:
    return [group for group in groups if isinstance(group, KVGroupSpec)]


def state_groups(groups: Sequence[GroupSpec]) -> list[StateGroupSpec]:
    return [group for group in groups if isinstance(group, StateGroupSpec)]


def _state_group(spec: DeltaNetSpec, layers: list[int], block_size: int) -> StateGroupSpec:
    channels = 2 * spec.num_key_heads * spec.key_head_dim + (
        spec.num_value_heads * spec.value_head_dim
    )
    return StateGroupSpec(
        layers=tuple(layers),
        conv_shape=(spec.conv_width - 1, channels),
        state_shape=(spec.num_value_heads, spec.key_head_dim, spec.value_head_dim),
        block_size=block_size,
    )


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
