"""How a quantized checkpoint's weights are held, and what that costs, in words."""

from collections.abc import Mapping

from pagoda.arch.spec import ModelSpec
from pagoda.base.words import say, with_semicolons
from pagoda.planner.reason import Reason
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.formats import PUBLISHED, held_as

# Errors as `tools/quantization_error.py` measures them.
_COSTS: Mapping[tuple[str, str], str] = {
    ("INT4", "Q4_0"): say("the same codes, scales in fp16"),
    ("UINT4", "Q4_1"): say("the same codes, scales and minima in fp16"),
    ("INT8", "Q8_0"): say("the same codes, scales in fp16"),
    ("FP8", "Q8_0"): say("rounded once more, by 0.55% (rms)"),
    ("FP4", "Q6_K"): say("the same codes, scales in a byte times fp16"),
    ("FP4", "Q8_0"): say("rounded once more, by 0.57% (rms)"),
    ("DECODED", "Q8_0"): say(
        "rounded once more, by 0.5% (rms), for no packed form holds its numbers"
    ),
}


def quantization_reason(
    spec: ModelSpec, tensors: Mapping[str, TensorInfo], packed: frozenset[str], dtype: str
) -> Reason | None:
    """What config.json says of the quantization, and what becomes of its weights; None where no
    tensor is quantized so."""
    kinds = {
        (info.type, _held(info, packed) or dtype)
        for info in tensors.values()
        if info.type in PUBLISHED
    }
    if not kinds:
        return None
    said = with_semicolons(_in_words(storage, held) for storage, held in sorted(kinds))
    return Reason("quantization", spec.quantization, said)


def _in_words(storage: str, held: str) -> str:
    if storage == held:
        return say("{storage} stays", storage=storage)
    cost = _COSTS.get((storage, held), say("decoded as it loads"))
    return say("{storage} held as {held}: {cost}", storage=storage, held=held, cost=cost)


def _held(info: TensorInfo, packed: frozenset[str]) -> str | None:
    """The storage format of `packed` that it is held in; None for none."""
    held = held_as(info.type, info.shape[-1], packed)
    return held if held in packed else None
