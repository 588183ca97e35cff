"""Which layers share a block table, and how large their blocks are."""

from dataclasses import dataclass

from pagoda.arch.spec import AttentionKind, AttentionSpec, ModelSpec

_ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
INT8_SCALE_BYTES = 4
"""The fp32 scale of an int8 row (one token's K or V of one head).

It lies in its row's block and moves with it, so that block ids mean the same in every type.
"""


def row_bytes(head_dim: int, kv_dtype: str) -> int:
    """Bytes of one token's K (or V) of one head; `kv_dtype` as in `--kv-cache-dtype`."""
    scale = INT8_SCALE_BYTES if kv_dtype == "int8" else 0
    return head_dim * _ELEMENT_BYTES[kv_dtype] + scale


@dataclass(frozen=True)
class KVGroupSpec:
    """Layers that keep KV alike, so that one block table serves them all."""

    kind: AttentionKind
    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    block_size: int
    """Tokens per block."""
    window: int | None = None
    """Tokens a query sees, itself included; None sees all."""

    def bytes_per_block(self, kv_dtype: str) -> int:
        """Keys and values of one block in all layers of the group."""
        rows = 2 * self.num_kv_heads * self.block_size * len(self.layers)
        return rows * row_bytes(self.head_dim, kv_dtype)


def kv_groups(spec: ModelSpec, block_size: int) -> list[KVGroupSpec]:
    """The model's KV groups, in the order of their first layers; encoders have none."""
    members: dict[tuple[AttentionKind, int, int, int | None], list[int]] = {}
    for index, layer in enumerate(spec.layers):
        attention = layer.mixer
        if not isinstance(attention, AttentionSpec) or attention.kind == "encoder":
            continue
        window = attention.window if attention.kind == "sliding" else None
        key = (attention.kind, attention.num_kv_heads, attention.head_dim, window)
        members.setdefault(key, []).append(index)
    return [
        KVGroupSpec(kind, tuple(layers), num_kv_heads, head_dim, block_size, window)
        for (kind, num_kv_heads, head_dim, window), layers in members.items()
    ]
