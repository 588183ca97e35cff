"""What NVIDIA's ModelOpt publishes: fp8, and NVFP4.

An NVFP4 layer is `weight` [out, in / 2] of U8, `weight_scale` [out, in / 16] of E4M3 and
`weight_scale_2`, one fp32 number that scales are multiplied with.
"""

from dataclasses import dataclass

from pagoda.weights.prequantized.fp8 import Fp8
from pagoda.weights.prequantized.matrix import Layer, Matrix
from pagoda.weights.prequantized.nvfp4 import MODELOPT, Nvfp4Matrix
from pagoda.weights.prequantized.settings import Settings


@dataclass(frozen=True)
class Nvfp4:
    description: str = "NVFP4 of ModelOpt, in groups of 16"
    storage: str = "FP4"
    group_size: int = -1

    def matrix(self, layer: Layer) -> Matrix | None:
        weight = layer.parts.get("weight")
        if weight is None or weight.type != "U8":
            return None
        return Nvfp4Matrix(layer, MODELOPT)


def from_config(settings: Settings) -> Fp8 | Nvfp4:
    algorithm = settings.text("quant_algo", "FP8").upper()
    if algorithm == "NVFP4":
        return Nvfp4()
    if algorithm != "FP8":
        raise settings.unsupported(f"ModelOpt's {algorithm} (known are FP8 and NVFP4)")
    return Fp8(None)
