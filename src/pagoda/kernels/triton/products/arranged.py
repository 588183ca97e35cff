"""Activations in the order in which products on tensor cores take the columns of packed weights.

A tile of packed weights has columns in runs of four or one. Activations read in such runs come in
pieces of eight bytes at most, for which tiles wait longer than for the weights: brought into that
order once, they come sixteen bytes at a time. On an H100 products of 64 tokens took a quarter less
time.
"""

import torch
import triton
import triton.language as tl

from pagoda.kernels.triton.products.decode import columns_of_part
from pagoda.kernels.triton.products.layouts import STEP, Layout

Tensor = torch.Tensor

_CHANGING = ["stride", "columns"]
"""Numbers that differ between products: the kernel is not compiled anew for some of them."""


@triton.jit(do_not_specialize=_CHANGING)
def _arrange(x, out, stride, columns, LAYOUT: tl.constexpr):
    token, step = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = out + (token * tl.num_programs(1) + step) * 256 + tl.arange(0, 64)
    for part in tl.static_range(4):
        column = columns_of_part(step, part, LAYOUT)
        given = tl.load(x + token * stride + column, column < columns, other=0)
        tl.store(place + part * 64, given)


def order_of(layout: Layout) -> tuple[int, bool] | None:
    """Layouts with the same take columns in the same order; None takes them as they are."""
    return None if layout.codes == "plain" else (layout.codes_each, layout.in_pairs)


def arranged(x: Tensor, layout: Layout) -> Tensor:
    """x [tokens, columns], rows any stride apart, in the order of `layout`: [tokens, whole steps],
    with zeros behind a row; x itself where weights are plain."""
    if order_of(layout) is None:
        return x
    tokens, columns = x.shape
    steps = triton.cdiv(columns, STEP)
    out = torch.empty((tokens, steps * STEP), dtype=x.dtype, device=x.device)
    if tokens:
        _arrange[(tokens, steps)](x, out, x.stride(0), columns, LAYOUT=layout, num_warps=1)
    return out


class Activations:
    """x [tokens, columns], and what several matrices take of it."""

    def __init__(self, x: Tensor):
        self.x = x if x.stride(1) == 1 else x.contiguous()
        self._arranged: dict[tuple[int, bool] | None, Tensor] = {}

    def arranged(self, layout: Layout) -> Tensor:
        """As `arranged`, once for each order."""
        order = order_of(layout)
        if order not in self._arranged:
            self._arranged[order] = arranged(self.x, layout)
        return self._arranged[order]
