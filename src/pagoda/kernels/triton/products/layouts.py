"""How quantized weights lie in a GPU's memory: facts alone, without torch.

A row's codes lie in quads: four elements (of 1, 2 or 4 bytes) that hold 4 x `codes_each` columns
which follow each other. The first element has the codes of the first column, the fifth, the ninth
and so on, the first in its lowest bits; the second has those of the second column, the sixth, and
so on. A thread loads a quad, of 16 bytes where codes have 4 or 8 bits; shifted, it has four columns
side by side, so that it loads four activations at a time, and all its codes share a scale or two.
Codes of 3, 5 or 6 bits are in two planes. Scales are apart, a row of them per group of columns.
"""

from dataclasses import astuple, dataclass, replace
from importlib.util import find_spec

STEP = 256
"""Columns that kernels take in a turn."""


@dataclass(frozen=True, repr=False)
class Layout:
    """How one matrix lies in memory; kernels are compiled for it."""

    storage: str
    planes: tuple[int, ...]
    """Bits of a code in each plane, the lowest first; none where weights are plain."""
    codes: str = "integer"
    """What a code is: `integer` (less `offset`), `e2m1`, `e4m3` (`e4m3x2` for kernels of a GPU that
    converts pairs), one of the 16 `levels` of IQ4, or `plain`."""
    offset: int = 0
    group: int = 32
    """Columns that share a scale; whole rows may."""
    scale: str = "half"
    """`half`, `single`, `power` of two (E8M0), a `byte` or a `nibble` times the block's fp16, or
    `e4m3` times the row's fp32."""
    minimum: str = ""
    """What goes beside the scale: `added` (fp16), `taken` off (a number like the scale's), or a
    `zero` point for the codes; nothing where empty."""

    @property
    def codes_each(self) -> int:
        """Codes of an element."""
        return 4 if self.planes == (8,) else 8

    @property
    def in_pairs(self) -> bool:
        """Whether two codes of an element become weights in bf16 at once (`native`)."""
        return self.planes in ((4,), (4, 1), (4, 2)) and self.codes != "levels"

    def element_bytes(self, plane: int) -> int:
        return self.planes[plane] * self.codes_each // 8

    @property
    def cache_key(self) -> str:
        """All of it, for Triton's folder of kernels, which outlives this table."""
        return repr(astuple(self))

    def __repr__(self) -> str:
        # Triton puts it into names: short, and no two layouts alike.
        return f"{self.storage}_{''.join(map(str, self.planes))}_{self.group}"


_QUANTIZED = (
    Layout("Q4_0", (4,), offset=8),
    Layout("Q4_1", (4,), minimum="added"),
    Layout("Q5_0", (4, 1), offset=16),
    Layout("Q5_1", (4, 1), minimum="added"),
    Layout("Q8_0", (8,), offset=128),
    Layout("Q2_K", (2,), group=16, scale="nibble", minimum="taken"),
    Layout("Q3_K", (2, 1), offset=4, group=16, scale="byte"),
    Layout("Q4_K", (4,), scale="byte", minimum="taken"),
    Layout("Q5_K", (4, 1), scale="byte", minimum="taken"),
    Layout("Q6_K", (4, 2), offset=32, group=16, scale="byte"),
    Layout("IQ4_NL", (4,), "levels"),
    Layout("IQ4_XS", (4,), "levels", scale="byte"),
    Layout("MXFP4", (4,), "e2m1", scale="power"),
    Layout("INT4", (4,), offset=8, scale="single"),
    Layout("UINT4", (4,), scale="single", minimum="zero"),
    Layout("INT8", (8,), offset=128, scale="single"),
    Layout("FP8", (8,), "e4m3", scale="single"),
    Layout("FP4", (4,), "e2m1", group=16, scale="e4m3"),
)
_LAYOUTS = {layout.storage: layout for layout in _QUANTIZED}

STORAGES = frozenset(_LAYOUTS)
"""Storage formats whose codes and scales are kept as they are."""


def kept_here() -> frozenset[str]:
    """STORAGES, where Triton is installed."""
    return STORAGES if find_spec("triton") is not None else frozenset()


def layout_of(storage: str) -> Layout:
    """The layout of one of STORAGES, or of plain weights."""
    return _LAYOUTS.get(storage) or Layout(storage, (), "plain")


def for_capability(layout: Layout, capability: int) -> Layout:
    """As kernels take it on a GPU of that compute capability, as 90 for 9.0."""
    if layout.codes == "e4m3" and capability >= 89:
        return replace(layout, codes="e4m3x2")
    return layout
