"""What the bytes of an engine's KV blocks depend on.

Two engines with the same identity can read each other's blocks, and continue from them with the
same bits.
"""

import hashlib
from collections.abc import Sequence

from pagoda.core.kvcache.spec import KVLayout
from pagoda.planner.resolved import ResolvedModel
from pagoda.weights.files import ModelFiles
from pagoda.weights.identity import add_identity


def blocks_of(
    model: ResolvedModel,
    kv_dtype: str,
    layout: KVLayout,
    kernels: str,
    num_ranks: int,
    cuts: tuple[int, ...],
    sizes: Sequence[int],
    files: Sequence[ModelFiles],
) -> dict[str, str]:
    """By name, so that a refusal can say what differs. As `engine.kv_disk.block_contents`;
    `sizes`: bytes of a block in each group; `files` of the model and of what drafts for it."""
    digest = hashlib.sha256(b"random" if model.dummy else b"")
    for each in () if model.dummy else files:
        for path in each.weight_paths():
            add_identity(path, digest.update)
    return {
        "model": digest.hexdigest(),
        "type": f"{model.dtype} {model.quantization}",
        "type of cache": kv_dtype,
        "block size": str(layout.block_size),
        "layout": layout.keys,
        "block bytes": " ".join(map(str, sizes)),
        "kernels": kernels,
        "ranks": str(num_ranks),
        "stages": str(cuts),
    }
