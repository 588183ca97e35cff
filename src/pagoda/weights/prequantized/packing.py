"""Codes of 4 or 8 bits out of the int32 words that they are packed into."""

import numpy as np
import numpy.typing as npt

from pagoda.base.errors import CheckpointError
from pagoda.weights.checkpoint import Checkpoint, TensorInfo

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]


def words(
    source: Checkpoint, info: TensorInfo, rows: slice | None = None, columns: slice | None = None
) -> Words:
    if info.type != "I32":
        raise CheckpointError(
            f"Tensor {info.name} is stored as {info.type}, but packed codes come as I32; the "
            "checkpoint is damaged or packed in another way."
        )
    return np.ascontiguousarray(source.read(info.name, rows, columns)).view(np.uint32)


def along_rows(packed: Words, bits: int) -> Bytes:
    """[rows, words] -> [rows, codes], a word's lowest bits first."""
    raw = np.ascontiguousarray(packed).view(np.uint8)
    if bits == 8:
        return raw
    codes = np.empty((len(raw), raw.shape[1] * 2), np.uint8)
    np.bitwise_and(raw, 15, out=codes[:, ::2])
    np.right_shift(raw, 4, out=codes[:, 1::2])
    return codes


def across(packed: Words, bits: int, order: tuple[int, ...] | None = None) -> Bytes:
    """[words, columns] -> [codes, columns], where each word holds codes of following rows;
    `order` says at which place of the word each lies."""
    count = 32 // bits
    codes = np.empty((len(packed), count, packed.shape[1]), np.uint8)
    for index, place in enumerate(order or range(count)):
        codes[:, index] = (packed >> np.uint32(place * bits)) & np.uint32((1 << bits) - 1)
    return codes.reshape(-1, packed.shape[1])


def word_span(part: slice, bits: int) -> tuple[slice, slice]:
    """The words that hold a run of codes, and the run among their codes."""
    count = 32 // bits
    first, last = part.start // count, -(-part.stop // count)
    return slice(first, last), slice(part.start - first * count, part.stop - first * count)
