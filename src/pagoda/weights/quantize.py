"""Rounds plain weights to ggml's blocks of 32, Q8_0 and Q4_1 (ggml-common.h), in numpy.

Blocks are computed on in columns, x [32, blocks]: sums over a block are then sums of whole rows.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

BLOCK = 32
# A range of twice this is the most that fp16 holds (65504).
_LARGEST = 32752
# Elements rounded at a time: Q4_1 takes 13 s of one core per GB of bf16, with 2^15 20 s.
_CHUNK_ELEMENTS = 1 << 17
# Ranges of the levels to start from, of the block's own, and least-squares fits of scale and
# minimum that follow. Of standard normal weights, one range and no fit leave an rms error of
# 7.8%, these 7.3%, 20 ranges with two fits each 7.1% at 8 times the cost.
_RANGES = (1.0, 0.9)
_FITS = 3


def quantize_rows(raw: Bytes, source: str, storage: str) -> Bytes:
    """Rows [rows, bytes per row] of BF16, F16 or F32 as rows of `storage`, one of `BLOCKS`.

    ValueError where a row is no whole number of blocks, or a scale does not fit fp16: the weights
    are infinite, NaN or too large.
    """
    to_blocks, block_bytes = BLOCKS[storage]
    columns = raw.shape[1] // _ELEMENT_BYTES[source]
    if columns % BLOCK:
        raise ValueError(f"{columns} columns are no whole blocks of {BLOCK}")
    out = np.empty((len(raw), columns // BLOCK * block_bytes), np.uint8)
    step = max(1, _CHUNK_ELEMENTS // max(1, columns))
    for start in range(0, len(raw), step):
        rows = raw[start : start + step]
        x = np.ascontiguousarray(widened(rows, source).reshape(-1, BLOCK).T)
        if x.size and not max(x.max(), -x.min()) <= _LARGEST:
            raise ValueError("weights are infinite, NaN or too large for a scale in fp16")
        out[start : start + step] = to_blocks(x).reshape(len(rows), -1)
    return out


def to_q8_0(x: Floats) -> Bytes:
    """x [32, blocks] -> [blocks, 34]: fp16 scale, 32 signed bytes."""
    scale = _half(np.abs(x).max(0) / np.float32(127))
    # Rounded down, the scale leaves the largest a little past 127.
    codes = np.rint(x * _inverse(scale)).clip(-127, 127).astype(np.int8).view(np.uint8)
    return np.concatenate((_bytes(scale), codes.T), axis=1)


def to_q4_1(x: Floats) -> Bytes:
    """x [32, blocks] -> [blocks, 20]: fp16 scale and minimum, 16 bytes of codes 0 to 15; the
    first 16 codes are the bytes' low halves."""
    scale, minimum, codes = _search_q4_1(x)
    low, high = np.split(codes.astype(np.uint8), 2)
    return np.concatenate((_bytes(scale), _bytes(minimum), (low | high << 4).T), axis=1)


def _search_q4_1(x: Floats) -> tuple[Floats, Floats, Floats]:
    """(scale, minimum, codes) of little squared error."""
    best, least = _q4_1_spread(x, _RANGES[0])
    for share in _RANGES[1:]:
        _keep_better(best, least, *_q4_1_spread(x, share))
    for _ in range(_FITS):
        _keep_better(best, least, *_q4_1_fit(x, best[2]))
    return best


_Candidate = tuple[Floats, Floats, Floats]


def _q4_1_spread(x: Floats, share: float) -> tuple[_Candidate, Floats]:
    """Levels spread evenly over the middle `share` of each block's range."""
    low = x.min(0)
    span = x.max(0) - low
    return _rounded(x, span * np.float32(share / 15), low + span * np.float32((1 - share) / 2))


def _q4_1_fit(x: Floats, codes: Floats) -> tuple[_Candidate, Floats]:
    """The line that lies closest to x over these codes, and the codes that then lie closest."""
    sum_x, sum_q = x.sum(0), codes.sum(0)
    spread = BLOCK * np.einsum("ij,ij->j", codes, codes) - sum_q * sum_q
    slope = (BLOCK * np.einsum("ij,ij->j", codes, x) - sum_q * sum_x) * _inverse(spread)
    return _rounded(x, slope, (sum_x - slope * sum_q) * np.float32(1 / BLOCK))


def _rounded(x: Floats, scale: Floats, minimum: Floats) -> tuple[_Candidate, Floats]:
    """((scale, minimum, codes), squared error), for scale and minimum as fp16 holds them."""
    scale, minimum = _half(scale), _half(minimum)
    rest = x - minimum
    codes = rest * _inverse(scale)
    np.rint(codes, out=codes)
    codes.clip(0, 15, out=codes)
    rest -= scale * codes
    return (scale, minimum, codes), np.einsum("ij,ij->j", rest, rest)


def _keep_better(best: _Candidate, least: Floats, other: _Candidate, error: Floats) -> None:
    """Put into `best` and `least` what is better in `other`, block by block."""
    better = error < least
    for kept, found in zip((*best, least), (*other, error), strict=True):
        np.copyto(kept, found, where=better)


def _half(x: Floats) -> Floats:
    return x.astype(np.float16).astype(np.float32)


def _bytes(x: Floats) -> Bytes:
    return x.astype(np.float16)[:, None].view(np.uint8)


def _inverse(x: Floats) -> Floats:
    """1 / x, but 0 for 0."""
    return np.divide(1, x, out=np.zeros_like(x), where=x != 0)


def widened(raw: Bytes, source: str) -> Floats:
    """uint8 [rows, bytes per row] of BF16, F16 or F32 as fp32 [rows, columns]."""
    raw = np.ascontiguousarray(raw)
    if source == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if source == "F16":
        return raw.view(np.float16).astype(np.float32)
    return raw.view(np.float32)


_ELEMENT_BYTES: Mapping[str, int] = {"BF16": 2, "F16": 2, "F32": 4}

BLOCKS: Mapping[str, tuple[Callable[[Floats], Bytes], int]] = {
    "Q8_0": (to_q8_0, 34),
    "Q4_1": (to_q4_1, 20),
}
"""Storage formats that plain weights are rounded to: what rounds, and bytes per block."""
