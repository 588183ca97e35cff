"""Which layers share a block table, and how large their blocks are."""

from dataclasses import dataclass

from pagoda.arch.spec import AttentionKind, ModelSpec


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

    def bytes_per_block(self, dtype_bytes: int) -> int:
        """Keys and values of one block in all layers of the group."""
        per_layer = 2 * self.num_kv_heads * self.head_dim * self.block_size * dtype_bytes
        return len(self.layers) * per_layer


def kv_groups(spec: ModelSpec, block_size: int) -> list[KVGroupSpec]:
    """The model's KV groups, in the order of their first layers."""
    members: dict[tuple[AttentionKind, int, int, int | None], list[int]] = {}
    for index, layer in enumerate(spec.layers):
        attention = layer.attention
        window = attention.window if attention.kind == "sliding" else None
        key = (attention.kind, attention.num_kv_heads, attention.head_dim, window)
        members.setdefault(key, []).append(index)
    return [
        KVGroupSpec(kind, tuple(layers), num_kv_heads, head_dim, block_size, window)
        for (kind, num_kv_heads, head_dim, window), layers in members.items()
    ]
