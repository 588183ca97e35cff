"""A parameter of a loaded model by its sizes, and how several devices share it."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

Role = Literal[
    "embedding", "head", "linear", "experts", "per_head", "router", "vector", "conv", "table",
    "vision",
]  # fmt: skip
"""`table`: learned positions, types and layers' inputs, looked up and never multiplied. `vision`: a
matrix of the tower. `per_head`: one for each head of attention."""
DRAFT_HEAD = "draft_head."
"""What names of a draft head's parameters begin with."""


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
        return self.name.startswith(DRAFT_HEAD)

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


def norm(
    name: str, size: int, *, bias: bool = False, layer: int | None = None
) -> Iterator[ModelTensor]:
    """A norm's weight, and with `bias` one of these: vectors that every device holds."""
    for kind in (".weight", ".bias") if bias else (".weight",):
        yield ModelTensor(name + kind, (size,), "vector", layer=layer)


def linear(
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
    count = sum(part.rows for part in parts)
    split = () if column_units else parts
    yield ModelTensor(
        name + ".weight", (count, columns), role, split, column_units, layer, column_runs
    )
    if bias:
        yield ModelTensor(name + ".bias", (count,), "vector", split, layer=layer)


def rows_of(*sizes: int) -> tuple[Part, ...]:
    """Parts that are split anywhere."""
    return tuple(Part(size, size) for size in sizes)
