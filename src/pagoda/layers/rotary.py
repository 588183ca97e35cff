"""Tables by position, shared by all layers of equal specs: rotary cosines and sines, and what
queries are multiplied with."""

import math

import torch

from pagoda.arch.spec import QueryScaling, RopeScaling, RopeSpec
from pagoda.layers.batch import ForwardBatch

_MIN_LENGTH = 1024


class RotaryTable:
    """fp32 [positions, rotary_dim], cosines then sines; grows to the longest length asked for.

    Reserve the longest context before pointers to it are kept (captured steps).
    """

    def __init__(self, spec: RopeSpec, device: str):
        self.spec = spec
        self.device = device
        scaling = spec.scaling
        self._factors = _vector(scaling.short_factors if scaling is not None else ())
        self._long_factors = _vector(scaling.long_factors if scaling is not None else ())
        self._table = torch.empty(0, spec.rotary_dim)

    def set_factors(self, factors: torch.Tensor, long_factors: torch.Tensor | None = None) -> None:
        """fp32 [rotary_dim / 2] divisors of the frequencies, from a GGUF; `long_factors` where the
        context is longer than the trained one."""
        self._factors, self._long_factors = factors, long_factors
        self._table = torch.empty(0, self.spec.rotary_dim)

    def upto(self, length: int) -> torch.Tensor:
        """The table with at least `length` positions: fp32 [positions, rotary_dim]."""
        if length > self._table.shape[0]:
            self.reserve(max(_MIN_LENGTH, 1 << (length - 1).bit_length()))
        return self._table

    def at(self, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """(index int64 [num_tokens], table) of a batch: each token's cosines and sines are a row.

        Positions of three coordinates get a table of their own, which all layers share.
        """
        table = self.upto(batch.max_kv_len)
        if batch.positions.dim() == 1:
            return batch.positions, table
        if self not in batch.rotary_rows:
            assert self.spec.axes is not None  # only such models have these positions
            axes = torch.tensor(self.spec.axes * 2, device=table.device)
            columns = torch.arange(self.spec.rotary_dim, device=table.device)
            batch.rotary_rows[self] = table[batch.positions[axes].T, columns].contiguous()
        rows = batch.rotary_rows[self]
        return torch.arange(len(rows), device=rows.device), rows

    def reserve(self, length: int) -> None:
        """Make room for exactly that many positions, unless there is more already."""
        if length > self._table.shape[0]:
            self._table = _cos_sin(self.spec, self._factors_for(length), length).to(self.device)

    def _factors_for(self, length: int) -> torch.Tensor | None:
        """One set for all positions, so that a token's rotation does not change as its text grows:
        which one, the longest context decides."""
        scaling = self.spec.scaling
        if scaling is not None and scaling.kind == "longrope":
            return self._long_factors if length > scaling.original_max_position else self._factors
        return self._factors


class QueryScales:
    """fp32 [positions]; grows as RotaryTable does."""

    def __init__(self, spec: QueryScaling, device: str):
        self._spec = spec
        self.device = device
        self._scales = torch.empty(0)

    def upto(self, length: int) -> torch.Tensor:
        """The scales of at least `length` positions: fp32 [positions]."""
        if length > len(self._scales):
            self.reserve(max(_MIN_LENGTH, 1 << (length - 1).bit_length()))
        return self._scales

    def reserve(self, length: int) -> None:
        """Make room for exactly that many positions, unless there is more already."""
        if length <= len(self._scales):
            return
        spec = self._spec
        passed = (torch.arange(length) + spec.offset).div(spec.length, rounding_mode="floor")
        self._scales = (1 + spec.strength * passed.double().log1p()).float().to(self.device)


class RotaryTables:
    """One RotaryTable per RopeSpec, one QueryScales per QueryScaling."""

    def __init__(self, device: str):
        self._device = device
        self.tables: dict[RopeSpec, RotaryTable] = {}
        self._scales: dict[QueryScaling, QueryScales] = {}

    def of(self, spec: RopeSpec) -> RotaryTable:
        if spec not in self.tables:
            self.tables[spec] = RotaryTable(spec, self._device)
        return self.tables[spec]

    def scales_of(self, spec: QueryScaling) -> QueryScales:
        if spec not in self._scales:
            self._scales[spec] = QueryScales(spec, self._device)
        return self._scales[spec]

    def reserve(self, length: int) -> None:
        for table in self.tables.values():
            table.reserve(length)
        for scales in self._scales.values():
            scales.reserve(length)

    def grow_on(self, device: str) -> None:
        """Have tables lie on `device` when they are next made anew."""
        self._device = device
        for table in self.tables.values():
            table.device = device
        for scales in self._scales.values():
            scales.device = device


def _vector(values: tuple[float, ...]) -> torch.Tensor | None:
    return torch.tensor(values) if values else None


def _cos_sin(spec: RopeSpec, factors: torch.Tensor | None, length: int) -> torch.Tensor:
    # fp32 throughout, as the reference implementations and the training had it.
    positions = torch.arange(length, dtype=torch.float32)[:, None]
    magnitude = 1.0
    if spec.scaling is not None and spec.scaling.kind == "dynamic":
        frequencies = _dynamic(spec, spec.scaling, length)
    else:
        frequencies = _frequencies(spec.theta, spec.rotary_dim)
        if factors is not None:
            frequencies = frequencies / factors
        if spec.scaling is not None:
            frequencies = _scaled(spec, spec.scaling, frequencies)
            magnitude = spec.scaling.attention_factor
    if spec.num_turning is not None:
        frequencies[..., spec.num_turning :] = 0
    angles = positions * frequencies
    # In place: of a long context each copy takes hundreds of MiB.
    table = torch.empty(length, spec.rotary_dim)
    cosines, sines = table.chunk(2, dim=-1)
    torch.cos(angles, out=cosines)
    torch.sin(angles, out=sines)
    return table.mul_(magnitude)


def _frequencies(theta: float | torch.Tensor, rotary_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    return 1.0 / theta**exponents


def _scaled(spec: RopeSpec, scaling: RopeScaling, frequencies: torch.Tensor) -> torch.Tensor:
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "longrope":
        return frequencies  # its factors have divided them
    if scaling.kind == "llama3":
        return _llama3(scaling, frequencies)
    return _yarn(spec, scaling, frequencies)


def _llama3(scaling: RopeScaling, frequencies: torch.Tensor) -> torch.Tensor:
    """Long wavelengths are divided by the factor, short ones kept, those between blended
    (section 3.4.1 of arXiv 2407.21783; facts from Meta's llama-models)."""
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def _yarn(spec: RopeSpec, scaling: RopeScaling, frequencies: torch.Tensor) -> torch.Tensor:
    """Ramp from kept to divided frequencies over dimensions (section 3.2 of arXiv 2309.00071)."""
    dim = spec.rotary_dim

    def dimension(turns: float) -> float:
        return (
            dim
            * math.log(scaling.original_max_position / (turns * 2 * math.pi))
            / (2 * math.log(spec.theta))
        )

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return frequencies * (1 - ramp) + frequencies / scaling.factor * ramp


def _dynamic(spec: RopeSpec, scaling: RopeScaling, length: int) -> torch.Tensor:
    """Frequencies of each position [length, rotary_dim / 2].

    transformers rescales by the length so far, so a token generated at position p is rotated as
    for length p + 1. Taking that for every token makes the rotation a function of the position
    alone, which chunked prefill and prefix reuse need; up to the trained length all agree.
    """
    lengths = torch.arange(1, length + 1, dtype=torch.float64).clamp_(
        min=scaling.original_max_position
    )
    growth = scaling.factor * lengths / scaling.original_max_position - (scaling.factor - 1)
    theta = spec.theta * growth ** (spec.rotary_dim / (spec.rotary_dim - 2))
    return _frequencies(theta.float()[:, None], spec.rotary_dim)
