"""Which external kernels for attention are there."""

from importlib.util import find_spec
from inspect import signature


def attention_libraries(capability: int) -> frozenset[str]:
    """Backends whose packages are installed for a GPU of `capability`, as 90 for 9.0."""
    found = set()
    if find_spec("flashinfer") is not None:
        found.add("flashinfer")
    module = "flash_attn_interface" if capability == 90 else "flash_attn.cute"
    if _is_installed(module) and _reads_blocks():
        found.add("flash-attn")
    return frozenset(found)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent
        return False


def _reads_blocks() -> bool:
    """Whether this torch's `varlen_attn` takes a block table, and all else that it is given."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return {"block_table", "seqused_k", "enable_gqa"} <= set(signature(varlen_attn).parameters)
