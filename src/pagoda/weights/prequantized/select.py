"""Which methods of quantization are known, by `quant_method` in config.json."""

import fnmatch
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from pagoda.base.errors import UnsupportedModelError
from pagoda.base.registry import Registry
from pagoda.weights.prequantized.settings import Settings

if TYPE_CHECKING:  # needs numpy
    from pagoda.weights.prequantized.matrix import Layer, Made

_HERE = "pagoda.weights.prequantized."
METHODS = Registry(
    "quantization method",
    {
        "gptq": _HERE + "gptq:from_config",
        "awq": _HERE + "awq:from_config",
        "bitsandbytes": _HERE + "bitsandbytes:from_config",
        "auto-round": _HERE + "auto_round:from_config",
        "intel/auto-round": _HERE + "auto_round:from_config",
        "compressed-tensors": _HERE + "compressed:from_config",
        "fp8": _HERE + "fp8:from_config",
        "fbgemm_fp8": _HERE + "fp8:from_config",
        "modelopt": _HERE + "modelopt:from_config",
    },
)

MXFP4 = "mxfp4"


class Method(Protocol):
    """A quantization_config, understood."""

    @property
    def description(self) -> str:
        """In words, for the log: `GPTQ, 4 bits in groups of 128`."""

    @property
    def storage(self) -> str:
        """What most of its matrices are, as `weights.formats` names it; headers say it of each."""

    @property
    def group_size(self) -> int:
        """Columns that share a scale in most of them; -1: all of a row."""

    def matrix(self, layer: "Layer") -> "Made | None":
        """The layer's weight, or None where the layer is not quantized: tensors say so, and lists
        such as `ignore` and `modules_to_not_convert` only repeat it.

        Raises CheckpointError for tensors that are missing or have other shapes than they must.
        """


def method_of(config: Mapping[str, Any] | None) -> Method | None:
    """How config.json says that the weights are quantized; None where they are not.

    Raises UnsupportedModelError for a method, or an option of one, that is not known.
    """
    values = _quantization(config or {})
    if not values:
        return None
    settings = Settings(values)
    name = settings.text("quant_method")
    if name == MXFP4:  # its tensors say so by themselves (`weights.mxfp4`)
        return None
    if name not in METHODS:
        known = ", ".join(sorted([*METHODS, MXFP4]))
        raise UnsupportedModelError(
            f"The weights are quantized by {name!r}, which is not supported yet (known are "
            f"{known}); take another quantization of the model, or a GGUF."
        )
    method: Method = METHODS.get(name)(settings)
    return method


def nominal_storage(config: Mapping[str, Any] | None) -> str | None:
    """What config.json alone says that most quantized matrices are, as `weights.formats` names it;
    None where nothing is quantized. Raises as `method_of`."""
    values = _quantization(config or {})
    if values and Settings(values).text("quant_method") == MXFP4:
        return "MXFP4"
    method = method_of(config)
    return None if method is None else method.storage


def description_of(config: Mapping[str, Any] | None) -> str:
    """How config.json says that the weights are quantized, in words; empty where they are not.
    Raises as `method_of`."""
    if nominal_storage(config) == "MXFP4":
        return "MXFP4"
    method = method_of(config)
    return "" if method is None else method.description


def left_out(config: Mapping[str, Any] | None) -> Callable[[str], bool]:
    """Whether config.json lists a layer, by its name, among those that are not quantized."""
    values = _quantization(config or {})
    settings = Settings(values or {})
    lists = ("modules_to_not_convert", "ignore", "llm_int8_skip_modules")
    names = [name for key in lists for name in settings.texts(key)]
    whole = {name for name in names if not name.startswith("re:")}
    patterns = [name.removeprefix("re:") for name in names if name.startswith("re:")]
    patterns += [fnmatch.translate(name) for name in whole if "*" in name]  # ModelOpt's
    dynamic = settings.section("dynamic")
    if dynamic is not None:
        patterns += [key.removeprefix("-:") for key in dynamic.values if key.startswith("-:")]

    try:
        matches = [re.compile(pattern).match for pattern in patterns]
    except re.error as error:
        raise settings.error("ignore", f"holds no regular expression ({error})") from error

    def is_left_out(layer: str) -> bool:
        if any(match(layer) for match in matches):
            return True
        return any(f".{name}." in f".{layer}." for name in whole)

    return is_left_out


def nominal_group(config: Mapping[str, Any] | None) -> int:
    """What config.json alone says of how many columns share a scale in most quantized matrices;
    -1: all of a row, 0: what the storage format says. Raises as `method_of`."""
    method = method_of(config)
    return 0 if method is None else method.group_size


def _quantization(config: Mapping[str, Any]) -> object:
    """The config's part about quantization. With vision it may lie in the language model's part;
    early files of compressed-tensors call it compression_config."""
    nested = config.get("text_config")
    for place in (config, nested if isinstance(nested, Mapping) else {}):
        for key in ("quantization_config", "compression_config"):
            if place.get(key):
                return place[key]
    return None
