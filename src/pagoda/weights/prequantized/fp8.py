"""fp8 as DeepSeek, Qwen, FBGEMM and ModelOpt publish it: `weight` of E4M3 and its scales.

`weight_scale_inv` holds what its block is multiplied with, whatever its name says; activation
scales of static quantization are left out, since activations stay wider here.
"""

from dataclasses import dataclass

from pagoda.weights.prequantized.matrix import Layer, Matrix
from pagoda.weights.prequantized.scaled import ScaledMatrix
from pagoda.weights.prequantized.settings import Settings


@dataclass(frozen=True)
class Fp8:
    block: tuple[int, int] | None

    @property
    def description(self) -> str:
        if self.block is None:
            return "fp8 (E4M3)"
        return f"fp8 (E4M3) in blocks of {self.block[0]}x{self.block[1]}"

    @property
    def storage(self) -> str:
        return "FP8"

    @property
    def group_size(self) -> int:
        return -1 if self.block is None else self.block[1]

    def matrix(self, layer: Layer) -> Matrix | None:
        weight = layer.parts.get("weight")
        if weight is None or weight.type != "F8_E4M3":
            return None
        scale = "weight_scale_inv" if "weight_scale_inv" in layer.parts else "weight_scale"
        return ScaledMatrix(layer, scale, self.block)


def from_config(settings: Settings) -> Fp8:
    kind = settings.text("fmt", settings.text("weight_format", "e4m3")).lower()
    if kind not in ("e4m3", "float8_e4m3fn", "e4m3fn"):
        raise settings.unsupported(f"fp8 in {kind!r} (known is e4m3)")
    return Fp8(settings.pair("weight_block_size"))
