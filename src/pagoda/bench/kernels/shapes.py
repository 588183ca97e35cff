"""Layers that `bench micro` measures."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """One layer of a model."""

    name: str
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    dim: int
    vocabulary: int

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of each matrix, as the models merge them."""
        return {
            "qkv": ((self.heads + 2 * self.kv_heads) * self.dim, self.hidden),
            "o": (self.hidden, self.heads * self.dim),
            "gate_up": (2 * self.mlp, self.hidden),
            "down": (self.hidden, self.mlp),
            "head": (self.vocabulary, self.hidden),
        }


@dataclass(frozen=True)
class DeltaNetShape:
    """One layer's gated delta net."""

    name: str
    key_heads: int
    value_heads: int
    dim: int
    """Head size of keys and of values."""
    width: int

    @property
    def channels(self) -> int:
        return (2 * self.key_heads + self.value_heads) * self.dim


SHAPES = (
    Shape("135M", 576, 1536, 9, 3, 64, 49152),  # the default model, SmolLM2-135M
    Shape("7B", 4096, 14336, 32, 8, 128, 32000),  # Mistral 7B (arXiv 2310.06825)
)
DELTA_NETS = (DeltaNetShape("27B", 16, 48, 128, 4),)  # Qwen3.6-27B
