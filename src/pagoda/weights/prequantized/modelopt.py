"""What NVIDIA's ModelOpt publishes: fp8, NVFP4, and layers of both in one model.

An NVFP4 layer is `weight` [out, in / 2] of U8, `weight_scale` [out, in / 16] of E4M3 and
`weight_scale_2`, one fp32 number that scales are multiplied with.
"""

from dataclasses import dataclass

from pagoda.weights.prequantized.fp8 import Fp8
from pagoda.weights.prequantized.matrix import Layer, Matrix
from pagoda.weights.prequantized.nvfp4 import MODELOPT, Nvfp4Matrix
from pagoda.weights.prequantized.settings import Settings

_FP8 = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN")
# The latter says that activations are not rounded.
_NVFP4 = ("NVFP4", "W4A16_NVFP4")
_MIXED = "MIXED_PRECISION"


@dataclass(frozen=True)
class Nvfp4:
    description: str = "NVFP4 of ModelOpt, in groups of 16"
    storage: str = "FP4"
    group_size: int = -1

    def matrix(self, layer: Layer) -> Matrix | None:
        weight = layer.parts.get("weight")
        if weight is None or weight.type != "U8":
            return Fp8(None).matrix(layer)
        return Nvfp4Matrix(layer, MODELOPT)


def from_config(settings: Settings) -> Fp8 | Nvfp4:
    algorithm = settings.text("quant_algo", "FP8").upper()
    found = {algorithm}
    if algorithm == _MIXED:
        layers = settings.sections("quantized_layers").values()
        found = {layer.text("quant_algo").upper() for layer in layers}
    for name in sorted(found - {*_FP8, *_NVFP4}):
        known = ", ".join((*_FP8, *_NVFP4, _MIXED))
        raise settings.unsupported(f"ModelOpt's {name} (known are {known})")
    if found <= set(_FP8) and found:
        return Fp8(None)
    return Nvfp4("NVFP4 and fp8 of ModelOpt") if algorithm == _MIXED else Nvfp4()
