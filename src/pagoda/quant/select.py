"""Which LinearFormat holds tensors of which storage formats."""

from collections.abc import Collection

from pagoda.base.errors import UnsupportedModelError
from pagoda.kernels import ops
from pagoda.quant.base import LinearFormat
from pagoda.quant.gguf import GgufLinear
from pagoda.quant.packed import PackedLinear
from pagoda.quant.plain import STORAGES, PlainLinear
from pagoda.weights.formats import held_as


def packs(storages: Collection[str], device: str) -> bool:
    """Whether a packed form on `device` is for tensors stored so: a CPU's for all, a GPU's for
    those that it keeps quantized."""
    if not set(storages) <= ops.DEQUANTIZABLE:
        return False
    kept = ops.packed_storages(device)
    return device == "cpu" or any(held_as(storage, 0, kept) in kept for storage in storages)


def linear_format(storages: tuple[str, ...], device: str, *, packed: bool) -> LinearFormat:
    """A fresh format for a layer whose shards are stored so, in the form of the device's kernels
    if `packed`; UnsupportedModelError if none can hold them."""
    kinds = set(storages)
    if packed and packs(kinds, device):
        return PackedLinear()
    if kinds <= STORAGES.keys():
        return PlainLinear()
    if kinds <= ops.DEQUANTIZABLE:
        return GgufLinear()
    unknown = ", ".join(sorted(kinds - ops.DEQUANTIZABLE))
    raise UnsupportedModelError(
        f"No linear layer can hold weights stored as {unknown} yet; "
        "take a bf16, fp16 or GGUF version of the model."
    )
