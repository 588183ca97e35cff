"""Which part of which checkpoint tensor becomes what in a layer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import torch
from torch.utils.dlpack import from_dlpack

from pagoda.arch.spec import ExpertTensors, RowPiece, WeightRule
from pagoda.kernels import ops
from pagoda.layers.loading import LoadTarget, Slices
from pagoda.weights.checkpoint import Checkpoint, TensorInfo
from pagoda.weights.formats import FORMATS


@dataclass(frozen=True)
class Piece:
    """A matrix or vector inside a checkpoint tensor, whole or cut by the layer's target."""

    source: str
    shape: tuple[int, ...]
    """That the whole tensor must have."""
    unpermute: int = 0
    turning: int | None = None
    turning_last: bool = False
    """As in WeightRule."""
    expert: int | None = None
    """Place on the first dimension of a stack; None for a tensor that is one matrix."""
    rows: RowPiece | None = None
    """Those of its rows that count (None: all); the target's rows are among these."""
    value: str = "x"
    transposed: bool = False
    folded: bool = False
    """As in WeightRule."""

    def read(self, checkpoint: Checkpoint, info: TensorInfo, target: LoadTarget) -> torch.Tensor:
        """The target's part, uint8 [rows, bytes per row]; a vector is a matrix of one column (or
        of one row, where the model has a matrix), and a convolution's kernel one of its outputs'
        rows.

        DLPack shares the mapped file's read-only pages without a copy (numpy 2.1 and later).
        """
        if self.expert is not None and len(self.shape) == 2:  # one of a stack of vectors
            span = slice(self.expert, self.expert + 1)
            vector = from_dlpack(checkpoint.read(info.name, span))
            return _chosen(vector.reshape(self.shape[1], -1), self.rows)
        runs = None if self._is_vector(info) else self._runs(target)
        if runs is None:
            chosen = _chosen(self._matrix(checkpoint, info, target, None), self.rows)
            raw = _joined([chosen[rows] for rows in target.rows or (slice(None),)], 0)
        else:
            raw = _joined([self._matrix(checkpoint, info, target, rows) for rows in runs], 0)
        if not self.unpermute:
            return raw
        return _unpermuted(raw, self.unpermute, self.turning, last=self.turning_last)

    def _matrix(
        self, checkpoint: Checkpoint, info: TensorInfo, target: LoadTarget, rows: slice | None
    ) -> torch.Tensor:
        """These rows of the matrix, or all of them; the target's columns."""
        if self._is_vector(info):
            return from_dlpack(checkpoint.read(info.name)).reshape(self.shape[0], -1)
        span = self._span(rows, info)
        parts = [
            from_dlpack(checkpoint.read(info.name, span, columns))
            for columns in target.columns or (None,)
        ]
        return self._flat(_joined(parts, 1), info)

    def _is_vector(self, info: TensorInfo) -> bool:
        """In the file or in the model."""
        return len(info.shape) == 1 or len(self.shape) == 1

    @property
    def _height(self) -> int:
        """Rows of the matrix, or of each in a stack."""
        return self.shape[0] if self.expert is None else self.shape[1]

    def _runs(self, target: LoadTarget) -> Slices | None:
        """The rows of the matrix that are the target's, where they lie in runs; None reads all."""
        if self.rows is None:
            return target.rows
        if self.rows.period != self._height:
            return None
        first, runs = self.rows.first, target.rows or (slice(0, self.rows.count),)
        return tuple(slice(first + rows.start, first + rows.stop) for rows in runs)

    def _span(self, rows: slice | None, info: TensorInfo) -> slice | None:
        """Rows of the matrix as those of the tensor, all of whose dimensions but one are folded."""
        if self.expert is not None:
            first = self.expert * self._height
            rows = rows or slice(0, self._height)
            return slice(first + rows.start, first + rows.stop)
        inner = self._inner(info)
        return None if rows is None else slice(rows.start * inner, rows.stop * inner)

    def _inner(self, info: TensorInfo) -> int:
        """Rows of the folded tensor that make one of the matrix's; a vector may be a row."""
        return max(1, prod(info.shape[:-1]) // self._height)

    def _flat(self, raw: torch.Tensor, info: TensorInfo) -> torch.Tensor:
        """A row for each of the matrix's."""
        inner = 1 if self.expert is not None else self._inner(info)
        return raw if inner == 1 else raw.reshape(len(raw) // inner, -1)


def pieces(rule: WeightRule, targets: Sequence[LoadTarget]) -> Iterator[Piece]:
    """What each target is made of; `rule` is an expanded one."""
    if rule.experts is not None:
        yield from _expert_pieces(rule, rule.experts, targets)
        return
    unpermute = rule.unpermute or (0,) * len(targets)
    if len(rule.sources) < len(targets):
        yield from _fused_pieces(rule, targets, unpermute)
        return
    chosen = rule.pieces or (None,) * len(targets)
    for source, target, size, part in zip(rule.sources, targets, unpermute, chosen, strict=True):
        rows, *columns = target.shape
        if part is not None:
            rows = rows // part.count * part.period
        yield Piece(
            source, (rows, *columns), size, rule.turning, rule.turning_last, rows=part,
            value=rule.value, folded=rule.folded,
        )  # fmt: skip


def transposed_bytes(raw: torch.Tensor, storage: str, columns: int) -> torch.Tensor:
    """The bytes of [rows, columns], stored so, as those of [columns, rows] in the format that
    `weights.formats.transposed` names."""
    if FORMATS[storage].block_elements > 1:
        raw = ops.dequantize(raw, storage).view(torch.uint8)
    turned: torch.Tensor = raw.unflatten(1, (columns, -1)).transpose(0, 1).flatten(1)
    return turned


def valued(raw: torch.Tensor, storage: str, value: str) -> torch.Tensor:
    """What becomes of a storage format's bytes (`WeightRule.value`), as those of F32."""
    x = ops.dequantize(raw, storage)
    return (x + 1 if value == "1 + x" else -x.exp()).view(torch.uint8)


def _fused_pieces(
    rule: WeightRule, targets: Sequence[LoadTarget], unpermute: Sequence[int]
) -> Iterator[Piece]:
    """A single tensor holds all shards, one behind the other on rows."""
    (source,) = rule.sources
    ends = list(accumulate(target.shape[0] for target in targets))
    for end, target, size in zip(ends, targets, unpermute, strict=True):
        rows, *columns = target.shape
        piece = RowPiece(ends[-1], end - rows, rows)
        yield Piece(source, (ends[-1], *columns), size, rule.turning, rows=piece)


def _expert_pieces(
    rule: WeightRule, experts: ExpertTensors, targets: Sequence[LoadTarget]
) -> Iterator[Piece]:
    single, parts = experts.layout == "single", experts.parts
    per_expert = len(rule.sources) // (experts.count if single else 1)
    for index, target in enumerate(targets):
        expert, (rows, *columns) = target.expert, target.shape
        assert expert is not None, rule.param
        if experts.layout == "rows":
            yield _rows_piece(rule, experts, expert, columns[0] if not rule.transposed else rows)
            continue
        source, part = divmod(index % (per_expert * parts), parts)
        piece = RowPiece(parts * rows, part * rows, rows)
        if experts.interleaved and parts > 1:
            piece = RowPiece(parts, part, 1)
        shape = (parts * rows, *columns)
        if single:
            yield Piece(rule.sources[expert * per_expert + source], shape, rows=piece)
            continue
        yield Piece(rule.sources[source], (experts.count, *shape), expert=expert, rows=piece)


def _rows_piece(rule: WeightRule, experts: ExpertTensors, expert: int, columns: int) -> Piece:
    (source,), (part,) = rule.sources, rule.pieces
    assert part is not None, rule.param
    height = experts.count * part.period
    rows = RowPiece(height, expert * part.period + part.first, part.count)
    return Piece(source, (height, columns), rows=rows, transposed=rule.transposed)


def _chosen(rows: torch.Tensor, piece: RowPiece | None) -> torch.Tensor:
    """A view where they lie together: the file's other pages are not read then."""
    if piece is None:
        return rows
    blocks = rows.unflatten(0, (-1, piece.period))
    out: torch.Tensor = blocks[:, piece.first : piece.first + piece.count].flatten(0, 1)
    return out


def _joined(parts: list[torch.Tensor], dim: int) -> torch.Tensor:
    """A view of the file where there is one part."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _unpermuted(
    rows: torch.Tensor, head_dim: int, turning: int | None, *, last: bool = False
) -> torch.Tensor:
    """Rows of each head from (pair, half) order back to (half, pair) order, but those behind
    `turning`; or where these are a head's `last` ones, those before them, which come behind.

    Of whole heads the inverse of llama.cpp's LlamaModel.permute (conversion/llama.py).
    """
    heads = rows.unflatten(0, (-1, head_dim))
    if last and turning is not None:
        heads = heads.roll(turning, 1)
    halves: torch.Tensor = heads[:, :turning].unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)
    if turning is not None:
        halves = torch.cat((halves, heads[:, turning:]), 1)
    out: torch.Tensor = halves.flatten(0, 1)
    return out
