"""Which LinearFormat holds tensors of which storage formats."""

from pagoda.base.errors import UnsupportedModelError
from pagoda.kernels import ops
from pagoda.quant.base import LinearFormat
from pagoda.quant.gguf import GgufLinear
from pagoda.quant.packed import PackedLinear
from pagoda.quant.plain import STORAGES, PlainLinear


def linear_format(storages: tuple[str, ...], *, packed: bool) -> LinearFormat:
    """A fresh format for a layer whose shards are stored so, in the native kernels' form if
    `packed`; UnsupportedModelError if none can hold them."""
    kinds = set(storages)
    if packed and kinds <= ops.DEQUANTIZABLE:
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
