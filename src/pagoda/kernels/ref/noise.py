"""Random numbers that depend on nothing but (seed, position).

No generator state: a request draws the same number for the same token whether it runs alone, in
a batch, after preemption, in other chunks, or as the verification of a draft.
"""

import numpy as np
import numpy.typing as npt

# SplitMix64 (Steele, Lea and Flood, 2014; constants of Vigna's splitmix64.c).
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

UInts = npt.NDArray[np.uint64]


def splitmix(seeds: UInts, index: UInts) -> UInts:
    """Output number `index` (from 0) of the SplitMix64 generators with these seeds."""
    x: UInts = seeds + (index + np.uint64(1)) * _GAMMA
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def exponential(
    seeds: UInts, positions: npt.NDArray[np.integer], count: int
) -> npt.NDArray[np.float64]:
    """[rows, count] numbers of the exponential distribution, made of (seed, position) per row.

    Seeds are mixed before use: two that differ by a multiple of _GAMMA would otherwise draw the
    same numbers some positions apart.
    """
    streams = splitmix(splitmix(seeds, np.zeros_like(seeds)), positions.astype(np.uint64))
    bits = splitmix(streams[:, None], np.arange(count, dtype=np.uint64)[None])
    # 53 random bits in (0, 1]: the logarithm is finite.
    uniform = ((bits >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53
    # A draw of exactly 1 would be a division by zero; this is beyond any other one's reach.
    noise: npt.NDArray[np.float64] = np.maximum(-np.log(uniform), 1e-300)
    return noise
