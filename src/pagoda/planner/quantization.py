"""What `--quantization` makes of a checkpoint's matrices."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import prod

from pagoda.arch.spec import TOWERS, ModelSpec, WeightRule
from pagoda.base.errors import ConfigError
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.formats import FORMATS

_PLAIN = frozenset(("BF16", "F16", "F32"))
# A CPU has no products in fp8; of the 8 bits that it has, those of Q8_0 keep more of a weight: an
# rms error of 0.54% instead of 2.65% (tools/quantization_error.py).
_STORAGES = {"fp8": "Q8_0", "int8": "Q8_0", "int4": "Q4_1"}
# Of large models the token table and the output head are a small part, and their errors are every
# token's: with theirs in 4 bits too the default model's mean KL to fp32 is 0.33 instead of 0.28.
_TABLE_STORAGE = "Q8_0"
_TABLES = frozenset(("embed.weight", "head.weight"))


def quantized_tensors(
    spec: ModelSpec, tensors: Mapping[str, TensorInfo], method: str
) -> Mapping[str, TensorInfo]:
    """The tensors as they are once plain matrices are rounded by `method` (fp8, int8, int4).

    Rows that are no whole blocks of 32 stay as they are. ConfigError where the checkpoint is
    quantized already: a second rounding adds error, and leaving those matrices as they are would
    not be what was asked for.
    """
    changed = dict(tensors)
    for name, storage in _storages(spec, tensors, method).items():
        info = tensors[name]
        if _fits(info, storage):
            nbytes = FORMATS[storage].nbytes(prod(info.shape))
            changed[name] = replace(info, type=storage, nbytes=nbytes)
    return changed


def rounding_in_words(spec: ModelSpec, tensors: Mapping[str, TensorInfo], method: str) -> str:
    """What `quantized_tensors` changes and what it leaves, for the log."""
    wanted = _storages(spec, tensors, method)
    rounded = Counter(storage for name, storage in wanted.items() if _fits(tensors[name], storage))
    kept = [name for name, storage in wanted.items() if not _fits(tensors[name], storage)]
    counts = [f"{count:,} tensors to {storage}" for storage, count in sorted(rounded.items())]
    said = f"--quantization {method} rounds {' and '.join(counts) or 'nothing'}."
    if not kept:
        return said
    named = kept[0] if len(kept) == 1 else f"{kept[0]} and {len(kept) - 1:,} more"
    return f"{said} It leaves {named}, whose rows are no whole blocks of 32."


def _storages(spec: ModelSpec, tensors: Mapping[str, TensorInfo], method: str) -> Mapping[str, str]:
    """What each matrix that is to be rounded becomes, if its rows are whole blocks of that."""
    found = {}
    for rule in spec.expanded_weights():
        if not _is_rounded(rule):
            continue
        # A tower is small too, and what it misreads no later layer can mend.
        wide = rule.param in _TABLES or rule.param.startswith(TOWERS)
        storage = _TABLE_STORAGE if wide else _STORAGES[method]
        for name in dict.fromkeys(rule.sources):
            info = tensors.get(name)
            if info is None or len(info.shape) == 1:
                continue
            if info.type not in _PLAIN:
                raise ConfigError(
                    f"--quantization {method} rounds bf16, fp16 and fp32 weights, and this "
                    f"checkpoint is quantized already ({name} is {info.type}): leave it out, or "
                    "take the model's unquantized version."
                )
            found[name] = storage
    return found


def _fits(info: TensorInfo, storage: str) -> bool:
    return info.shape[-1] % FORMATS[storage].block_elements == 0


def _is_rounded(rule: WeightRule) -> bool:
    """Not routers, which are small and choose what all else of a layer is."""
    return rule.param.endswith(".weight") and ".router." not in rule.param
