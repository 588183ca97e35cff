"""What torch's CUDA caching allocator makes of requests (c10/cuda/CUDACachingAllocator.cpp)."""

from bisect import bisect_left, insort
from collections.abc import Iterable

_MIB = 1 << 20
_UNIT = 512
_SMALL = 1 * _MIB
"""The largest request that comes out of segments of 2 MiB. A rest of at most this size is not
split off a larger one's segment: it counts as allocated."""
_MEDIUM = 10 * _MIB
"""From here on a request has a segment of its own; smaller ones share segments of 20 MiB."""
_SHARED_SEGMENT = 20 * _MIB
_ROUNDING = 2 * _MIB


def allocated(requests: Iterable[int]) -> int:
    """Bytes that `torch.cuda.memory_allocated()` says after these requests, in this order, of
    which none was freed."""
    total = 0
    # Rests of segments that later requests may take, smallest first.
    rests: list[int] = []
    for request in requests:
        if request <= 0:
            continue
        nbytes = -(-request // _UNIT) * _UNIT
        if nbytes <= _SMALL:
            total += nbytes
            continue
        at = bisect_left(rests, nbytes)
        segment = rests.pop(at) if at < len(rests) else _segment(nbytes)
        rest = segment - nbytes
        if rest > _SMALL:
            insort(rests, rest)
            total += nbytes
        else:
            total += segment
    return total


def _segment(nbytes: int) -> int:
    if nbytes < _MEDIUM:
        return _SHARED_SEGMENT
    return -(-nbytes // _ROUNDING) * _ROUNDING
