"""How elements are stored in checkpoint files: every type of GGUF and safetensors.

Sizes are facts of the formats: ggml's block structs (ggml-common.h) and the safetensors README.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StorageFormat:
    """A run of `block_elements` consecutive elements of a row takes `block_bytes` bytes."""

    name: str
    block_elements: int
    block_bytes: int
    ggml_id: int | None = None
    """The type's number in a GGUF; None for types that only safetensors has."""

    def nbytes(self, elements: int) -> int:
        """Bytes of that many elements; ValueError unless they fill whole blocks."""
        if elements % self.block_elements:
            raise ValueError(
                f"{elements} elements do not fill whole {self.name} blocks of {self.block_elements}"
            )
        return elements // self.block_elements * self.block_bytes


_TABLE = (
    ("F32", 1, 4, 0),
    ("F16", 1, 2, 1),
    ("Q4_0", 32, 18, 2),
    ("Q4_1", 32, 20, 3),
    ("Q5_0", 32, 22, 6),
    ("Q5_1", 32, 24, 7),
    ("Q8_0", 32, 34, 8),
    ("Q8_1", 32, 36, 9),  # two halves and 32 bytes; the gguf package still has the older 40
    ("Q2_K", 256, 84, 10),
    ("Q3_K", 256, 110, 11),
    ("Q4_K", 256, 144, 12),
    ("Q5_K", 256, 176, 13),
    ("Q6_K", 256, 210, 14),
    ("Q8_K", 256, 292, 15),
    ("IQ2_XXS", 256, 66, 16),
    ("IQ2_XS", 256, 74, 17),
    ("IQ3_XXS", 256, 98, 18),
    ("IQ1_S", 256, 50, 19),
    ("IQ4_NL", 32, 18, 20),
    ("IQ3_S", 256, 110, 21),
    ("IQ2_S", 256, 82, 22),
    ("IQ4_XS", 256, 136, 23),
    ("I8", 1, 1, 24),
    ("I16", 1, 2, 25),
    ("I32", 1, 4, 26),
    ("I64", 1, 8, 27),
    ("F64", 1, 8, 28),
    ("IQ1_M", 256, 56, 29),
    ("BF16", 1, 2, 30),
    ("TQ1_0", 256, 54, 34),
    ("TQ2_0", 256, 66, 35),
    ("MXFP4", 32, 17, 39),
    ("NVFP4", 64, 36, 40),
    ("Q1_0", 128, 18, 41),
    ("Q2_0", 64, 18, 42),
    ("BOOL", 1, 1, None),
    ("U8", 1, 1, None),
    ("U16", 1, 2, None),
    ("U32", 1, 4, None),
    ("U64", 1, 8, None),
    ("F8_E4M3", 1, 1, None),
    ("F8_E5M2", 1, 1, None),
    ("F8_E8M0", 1, 1, None),
    ("F6_E2M3", 4, 3, None),
    ("F6_E3M2", 4, 3, None),
    ("F4", 2, 1, None),
    ("C64", 1, 8, None),
)

# What quantized safetensors say with several tensors per matrix (`weights.prequantized`), put into
# rows of blocks. The fp32 scale holds any published one, which covers whole blocks and often more.
_PUBLISHED = (
    ("INT4", 32, 20),  # scale, codes as in Q4_0: scale * (code - 8)
    ("UINT4", 32, 21),  # scale, byte of zero point, codes as in Q4_0: scale * (code - zero)
    ("INT8", 32, 36),  # scale, 32 signed bytes
    ("FP8", 32, 36),  # scale, 32 numbers of E4M3
    # The row's fp32 scale, two of E4M3 for 16 columns each, numbers of E2M1 as Q4_0's codes lie.
    ("FP4", 32, 22),
    # fp32, where scales cover no whole blocks or codes stand for other numbers: nothing above 8
    # bits is in them.
    ("DECODED", 1, 4),
)

FORMATS: Mapping[str, StorageFormat] = {
    row[0]: StorageFormat(*row) for row in (*_TABLE, *_PUBLISHED)
}

PUBLISHED = frozenset(row[0] for row in _PUBLISHED)
"""What `weights.prequantized` makes of quantized safetensors."""

_NEAREST: Mapping[str, tuple[str, ...]] = {
    "INT4": ("Q4_0",),
    "UINT4": ("Q4_1",),
    "INT8": ("Q8_0",),
    "FP8": ("Q8_0",),
    "FP4": ("Q6_K", "Q8_0"),
    "DECODED": ("Q8_0",),
}


def held_as(storage: str, columns: int, kernels: Collection[str]) -> str:
    """Which of the storage formats that kernels compute with holds rows of so many columns.

    BF16 where none is near: 8 bits of mantissa are enough for what has fewer than 8 bits.
    """
    if storage in kernels:
        return storage
    for nearest in _NEAREST.get(storage, ()):
        if nearest in kernels and columns % FORMATS[nearest].block_elements == 0:
            return nearest
    return "BF16"


def transposed(storage: str) -> str:
    """The storage format of a matrix whose transposed one is stored so: blocks lie along rows."""
    return storage if FORMATS[storage].block_elements == 1 else "DECODED"


GGML_FORMATS: Mapping[int, StorageFormat] = {
    entry.ggml_id: entry for entry in FORMATS.values() if entry.ggml_id is not None
}

SAFETENSORS_NAMES = frozenset(
    name for name, block_elements, _, ggml_id in _TABLE if block_elements == 1 or ggml_id is None
)
"""The types a safetensors header may name."""

RETIRED_GGML_IDS: Mapping[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""Types that llama.cpp no longer has; their files must be converted anew."""
