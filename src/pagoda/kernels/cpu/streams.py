"""What Gemma 3n computes beside others, by the native kernels; `scale_columns` is Hunyuan's too."""

from collections.abc import Sequence

import torch

from pagoda.kernels.cpu._native import MAX_STREAMS, Native
from pagoda.kernels.cpu.arguments import check as _check
from pagoda.kernels.cpu.arguments import check_rows as _check_rows
from pagoda.kernels.cpu.arguments import dims as _dims
from pagoda.kernels.workspace import empty

Tensor = torch.Tensor


class CpuStreams:
    """The part of `CpuOps` that mixes hidden states of a token."""

    _native: Native

    def mix_streams(
        self, weights: Tensor, streams: Sequence[Tensor], added: Sequence[Tensor], plus: float = 0.0
    ) -> list[Tensor]:
        """As `Ops.mix_streams`; up to MAX_STREAMS of either."""
        rows, size = _dims("streams", streams[0], 2)
        if max(len(streams), len(added)) > MAX_STREAMS:
            raise ValueError(f"{len(streams)} streams and {len(added)} added ones: at most "
                             f"{MAX_STREAMS} can be mixed.")  # fmt: skip
        _check("weights", weights, torch.float32, (rows, len(streams) * len(added)))
        for name, parts in (("streams", streams), ("added", added)):
            for part in parts:
                _check(name, part, torch.float32, (rows, size))
        mixed = [empty((rows, size)) for _ in streams]
        self._native.mix_streams(
            weights.data_ptr(), _addresses(streams), _addresses(added), _addresses(mixed), rows,
            size, plus,
        )  # fmt: skip
        return mixed

    def scale_columns(self, x: Tensor, weight: Tensor) -> Tensor:
        """As `Ops.scale_columns`."""
        rows, size = _dims("x", x, 2)
        _check("x", x, torch.float32)
        _check("weight", weight, torch.float32, (size,))
        y = empty((rows, size))
        self._native.scale_columns(x.data_ptr(), weight.data_ptr(), y.data_ptr(), rows, size)
        return y

    def match_rms(self, x: Tensor, like: Tensor, least: float) -> Tensor:
        """As `Ops.match_rms`."""
        rows, size = _dims("x", x, 2)
        _check("x", x, torch.float32)
        _check("like", like, torch.float32, (rows, size))
        y = empty((rows, size))
        self._native.match_rms(x.data_ptr(), like.data_ptr(), y.data_ptr(), rows, size, least)
        return y

    def cut_columns(self, x: Tensor, cut: float) -> None:
        """As `Ops.cut_columns`."""
        rows, size = _dims("x", x, 2)
        _check_rows("x", x, (rows, size))
        self._native.cut_columns(x.data_ptr(), rows, x.stride(0), size, cut)


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]
