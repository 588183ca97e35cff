"""AutoRound (arXiv 2309.05516), whose files are packed as GPTQ's or AWQ's are."""

import re
from dataclasses import replace

from pagoda.weights.prequantized import awq, gptq
from pagoda.weights.prequantized.awq import Awq
from pagoda.weights.prequantized.gptq import Gptq
from pagoda.weights.prequantized.settings import Settings

# Zero points are stored less one in the packing of AutoGPTQ alone.
_ZERO_OFFSETS = {
    "auto_round:auto_gptq": 1,
    "auto_round:gptq:exllamav2": 1,
    "auto_round:gptqmodel": 0,
    "auto_round:exllamav2": 0,
    "auto_round": 0,
}
_AWQ = "auto_round:auto_awq"


def from_config(settings: Settings) -> Gptq | Awq:
    if settings.text("data_type", "int") != "int":
        raise settings.unsupported(f"AutoRound in {settings.text('data_type')}")
    # Early versions called it backend.
    packing = settings.text("packing_format", settings.text("backend", "auto_round:auto_gptq"))
    if packing == _AWQ:
        return replace(awq.from_config(settings), title="AutoRound")
    if packing not in _ZERO_OFFSETS:
        known = ", ".join((*_ZERO_OFFSETS, _AWQ))
        raise settings.unsupported(f"AutoRound packed as {packing!r} (known are {known})")
    different = settings.sections("extra_config")
    dynamic = {_pattern(name): section.values for name, section in different.items()}
    return replace(
        gptq.from_config(Settings({**settings.values, "dynamic": dynamic})),
        title="AutoRound",
        zero_offset=_ZERO_OFFSETS[packing],
    )


def _pattern(name: str) -> str:
    """A layer's whole name, or a pattern already."""
    return name if "*" in name else re.escape(name) + "$"
