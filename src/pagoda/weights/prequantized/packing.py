"""Codes of 2, 3, 4 or 8 bits out of the int32 words that they are packed into."""

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
    if rows is not None:  # a run of codes may end behind the last row
        rows = slice(*rows.indices(info.shape[0])[:2])
    return np.ascontiguousarray(source.read(info.name, rows, columns)).view(np.uint32)


def along_rows(packed: Words, bits: int) -> Bytes:
    """[rows, words] -> [rows, codes]: one stream of bits, the lowest of each word first, so that
    codes of 3 bits may lie across two words."""
    raw = np.ascontiguousarray(packed).view(np.uint8)
    if bits == 8:
        return raw
    if bits == 3:
        return _of_three_bits(raw)
    count = 8 // bits
    codes = np.empty((len(raw), raw.shape[1] * count), np.uint8)
    for index in range(count):
        np.right_shift(raw, index * bits, out=codes[:, index::count])
    codes &= (1 << bits) - 1
    return codes


def _of_three_bits(raw: Bytes) -> Bytes:
    """Eight codes of every three bytes, of which the last ones may be missing."""
    raw = np.pad(raw, ((0, 0), (0, -raw.shape[1] % 3)))
    first, second, third = (raw[:, index::3].astype(np.uint32) for index in range(3))
    joined = first | second << np.uint32(8) | third << np.uint32(16)
    codes = np.empty((len(raw), joined.shape[1] * 8), np.uint8)
    for index in range(8):
        codes[:, index::8] = (joined >> np.uint32(3 * index)) & np.uint32(7)
    return codes


def codes_per_run(bits: int) -> int:
    """How many codes fill whole words: 32 of 3 bits fill three, of others each word holds some."""
    return 32 if bits == 3 else 32 // bits


def word_span(part: slice, bits: int) -> tuple[slice, slice]:
    """The words that hold a run of codes, and the run among their codes."""
    count = codes_per_run(bits)
    words_of = count * bits // 32
    first, last = part.start // count, -(-part.stop // count)
    inside = slice(part.start - first * count, part.stop - first * count)
    return slice(first * words_of, last * words_of), inside


def as_symmetric(codes: Bytes, bits: int) -> Bytes:
    """Codes around the middle of theirs as INT4 and INT8 have them: around 8, and signed."""
    if bits == 8:
        return codes ^ np.uint8(128)
    return codes if bits == 4 else codes + np.uint8(8 - (1 << (bits - 1)))
