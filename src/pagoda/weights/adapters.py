"""Low-rank adapters (LoRA) as files: a folder that peft wrote, or a GGUF of llama.cpp.

Formats: huggingface/peft, docs "checkpoint format" (`adapter_config.json` and
`adapter_model.safetensors`); llama.cpp, convert_lora_to_gguf.py. Neither needs torch to be read.
"""

import hashlib
import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pagoda.base.errors import CheckpointError, SourceError, UnsupportedModelError
from pagoda.weights.checkpoint import Checkpoint, TensorInfo
from pagoda.weights.gguf.checkpoint import GgufCheckpoint
from pagoda.weights.hub.store import Progress
from pagoda.weights.jsonfile import read_json
from pagoda.weights.safetensors import SafetensorsCheckpoint
from pagoda.weights.source import find_model, parse_ref, resolve_model

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_MERGED = "merge the adapter into the checkpoint and serve that"
# What an adapter may be told to do besides B(A x); computed without it, it would be another one.
_REFUSED = {
    "use_dora": "DoRA",
    "lora_bias": "biases of B",
    "fan_in_fan_out": "transposed weights",
    "modules_to_save": "whole modules (modules_to_save)",
    "trainable_token_indices": "trained tokens",
    "layer_replication": "replicated layers",
    "alora_invocation_tokens": "activation by tokens (aLoRA)",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal LoRA",
    "arrow_config": "routed adapters (Arrow)",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
}
# Ways to begin that take from the model's weights what they put into the adapter; peft can save
# such an adapter for the model as it was, and then calls it another.
_CHANGES_MODEL = ("pissa", "olora", "corda", "loftq", "lora_ga")
_PATTERN = re.compile(r"(\^|\.\*\\\.)?[\w.-]+", re.ASCII)
_WRAPPED = re.compile(r"(.*?)((?:\.base_layer)*)")
# Parameters of all experts, in the order in which transformers' modules have them.
_PARAMETERS = ("gate_proj", "gate_up_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class AdaptedModule:
    """B(A x) beside one linear layer of the checkpoint, or beside that of each expert."""

    a: TensorInfo
    """[rank, in]; of all experts [experts, rank, in], or as `experts` says."""
    b: TensorInfo
    """[out, rank]; of all experts [experts, out, rank], or as `experts` says."""
    scale: float
    experts: int = 0
    """peft folds experts into the rank: A is [experts * rank, in] then, and B [out, rank *
    experts]. 0 where nothing is folded."""

    @property
    def rank(self) -> int:
        return self.a.shape[-2] // (self.experts or 1)


@dataclass(frozen=True)
class AdapterFiles:
    path: Path
    kind: Literal["peft", "gguf"]
    checkpoint: Checkpoint
    modules: Mapping[str, AdaptedModule]
    """By the name of the adapted weight in the model's checkpoint, `.weight` left out."""

    @property
    def rank(self) -> int:
        """The largest of its modules."""
        return max(module.rank for module in self.modules.values())

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that say what it does."""
        if self.kind == "gguf":
            return (self.path,)
        return (self.path / CONFIG_NAME, self.path / WEIGHTS_NAME)

    def identity(self) -> str:
        """Hexadecimal digest of its content: equal ones change a model equally."""
        digest = hashlib.sha256()
        for path in self.paths:
            try:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as error:
                raise _unreadable(path, error) from error
        return digest.hexdigest()


def fetch_adapter(ref: str, progress: Progress | None = None) -> None:
    """Bring an adapter of the hub's here (`org/name`); what is here, or is no such name, is left to
    `open_adapter`. SourceError where that cannot be."""
    try:
        is_remote = parse_ref(ref).kind in ("hf", "modelscope")
    except SourceError:
        return
    if is_remote:
        resolve_model(ref, progress=progress)


def open_adapter(path: Path) -> AdapterFiles:
    """An adapter's headers. CheckpointError where no adapter is there or it is broken,
    UnsupportedModelError for one that does more than B(A x). `org/name` is one of the hub's that
    was fetched."""
    if not path.exists():
        path = find_model(str(path)) or path
    if path.is_file():
        return _open_gguf(path) if path.suffix == ".gguf" else _open_peft(path.parent)
    if not path.is_dir():
        raise CheckpointError(
            f"There is no adapter at {path}; give the folder that peft wrote, llama.cpp's GGUF, or "
            "the name that one has on the hub."
        )
    found = sorted(path.glob("*.gguf"))
    if not (path / CONFIG_NAME).is_file() and len(found) == 1:
        return _open_gguf(found[0])
    return _open_peft(path)


def _open_peft(folder: Path) -> AdapterFiles:
    for name in (CONFIG_NAME, WEIGHTS_NAME):
        if not (folder / name).is_file():
            raise CheckpointError(
                f"{folder} is no adapter: it lacks {name}. Save one with peft's save_pretrained."
            )
    config = read_json(folder / CONFIG_NAME)
    _check_config(folder, config)
    checkpoint = SafetensorsCheckpoint(folder / WEIGHTS_NAME)
    pairs = {
        name.removeprefix(_PREFIX): (a, b)
        for name, a, b in _pairs(folder, checkpoint, ".lora_A.weight", ".lora_B.weight")
    }
    modules = {}
    for name, (a, b) in pairs.items():
        parameter = _parameter(folder, config, name, pairs)
        if parameter is None:
            rank = a.shape[0]
            modules[name] = AdaptedModule(a, b, _scale(folder, config, name, rank))
            continue
        rank = _rank(folder, config, parameter)
        experts, rest = divmod(a.shape[0], rank)
        if rest:
            raise CheckpointError(
                f"The adapter {folder} has {ascii(parameter)[1:-1]} with A {list(a.shape)}, whose "
                f"rows are those of no number of experts with the rank {rank}."
            )
        scale = _scale(folder, config, parameter, rank)
        modules[parameter] = AdaptedModule(a, b, scale, experts)
    return AdapterFiles(folder, "peft", checkpoint, modules)


def _parameter(
    folder: Path, config: Mapping[str, Any], name: str, pairs: Collection[str]
) -> str | None:
    """The parameter of all experts that a pair of tensors stands beside, None where it is a linear
    layer's. The first one that a module has is wrapped first, and `.base_layer` comes from every
    further one (peft, tuners/lora/layer.py, ParamWrapper)."""
    found = _WRAPPED.fullmatch(name)
    assert found is not None  # it matches everything
    module, depth = found[1], found[2].count(".base_layer")
    if _last(module) != "experts":  # a bare `down_proj` is meant for any module that has it
        return None
    targets = config.get("target_parameters") or []
    if not isinstance(targets, list) or not all(isinstance(each, str) for each in targets):
        raise CheckpointError(f"{folder / CONFIG_NAME}: target_parameters is no list of names.")
    ends = {_last(each) for each in targets if _names(each, f"{module}.{_last(each)}")}
    if not ends:
        return None
    own = [each for each in _PARAMETERS if each in ends]
    levels = next(n for n in itertools.count() if module + ".base_layer" * n not in pairs)
    if len(own) != len(ends) or levels != len(ends):
        raise UnsupportedModelError(
            f"The adapter {folder} has {ascii(module)[1:-1]} with {levels} of the parameters "
            f"{', '.join(sorted(ends))}; all of them, and of {', '.join(_PARAMETERS)} alone, are "
            f"what is served; {_MERGED}."
        )
    return f"{module}.{own[-1 - depth]}"


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _check_config(folder: Path, config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UnsupportedModelError(
            f"{folder} is an adapter of the type {kind!r}; LORA is the one that is served."
        )
    bias = config.get("bias", "none")
    wanted = [what for key, what in _REFUSED.items() if config.get(key)]
    if bias != "none":
        wanted.append(f"trained biases (bias = {bias!r})")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.startswith(_CHANGES_MODEL):
        wanted.append(f"the model that {start} left behind")
    if wanted:
        raise UnsupportedModelError(
            f"The adapter {folder} asks for {' and '.join(wanted)}, which is not served; {_MERGED}."
        )


def _scale(folder: Path, config: Mapping[str, Any], name: str, rank: int) -> float:
    """lora_alpha / r, or with rsLoRA (arXiv 2312.03732) lora_alpha / sqrt(r)."""
    alpha = _of_module(folder, config, "alpha_pattern", name, config.get("lora_alpha", 8))
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise CheckpointError(
            f"{folder / CONFIG_NAME}: lora_alpha is {alpha!r}, which is no number."
        )
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _rank(folder: Path, config: Mapping[str, Any], name: str) -> int:
    """What the configuration says."""
    rank = _of_module(folder, config, "rank_pattern", name, config.get("r", 8))
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise CheckpointError(f"{folder / CONFIG_NAME}: r is {rank!r}, which is no rank.")
    return rank


def _of_module(folder: Path, config: Mapping[str, Any], key: str, name: str, usual: Any) -> Any:
    """What one of peft's patterns says of a module; `usual` where none does."""
    patterns = config.get(key) or {}
    if not isinstance(patterns, dict):
        raise CheckpointError(f"{folder / CONFIG_NAME}: {key} is no object.")
    for pattern, value in patterns.items():
        if not _PATTERN.fullmatch(pattern):
            raise UnsupportedModelError(
                f"{folder / CONFIG_NAME}: {key} has {ascii(pattern)}, and names of modules are "
                "what is read there; write one entry for each."
            )
        if _names(pattern.removeprefix(".*\\."), name):
            return value
    return usual


def _names(pattern: str, module: str) -> bool:
    """Whether it is the module's name, or the end of it."""
    if pattern.startswith("^"):
        return module == pattern[1:]
    return f".{module}".endswith(f".{pattern}")


def _open_gguf(path: Path) -> AdapterFiles:
    checkpoint = GgufCheckpoint(path)
    metadata = checkpoint.metadata
    kind, method = metadata.get("general.type"), metadata.get("adapter.type")
    if kind != "adapter" or method != "lora":
        raise CheckpointError(
            f"{path} is no adapter: its general.type is {kind!r} and its adapter.type {method!r}. "
            "llama.cpp's convert_lora_to_gguf.py writes one."
        )
    if metadata.get("adapter.alora.invocation_tokens"):
        raise UnsupportedModelError(
            f"The adapter {path} asks for {_REFUSED['alora_invocation_tokens']}, which is not "
            f"served; {_MERGED}."
        )
    alpha = metadata.get("adapter.lora.alpha", 0.0)
    modules = {
        # Without an alpha llama.cpp scales nothing.
        name.removesuffix(".weight"): AdaptedModule(a, b, alpha / a.shape[-2] if alpha else 1.0)
        for name, a, b in _pairs(path, checkpoint, ".lora_a", ".lora_b")
    }
    return AdapterFiles(path, "gguf", checkpoint, modules)


def _pairs(
    path: Path, checkpoint: Checkpoint, a_suffix: str, b_suffix: str
) -> Iterator[tuple[str, TensorInfo, TensorInfo]]:
    """Each module's name, A and B."""
    tensors = checkpoint.tensors
    if not tensors:
        raise CheckpointError(f"The adapter {path} holds no tensors.")
    for name, tensor in tensors.items():
        if name.endswith(b_suffix) and name.removesuffix(b_suffix) + a_suffix in tensors:
            continue
        module = name.removesuffix(a_suffix)
        partner = tensors.get(module + b_suffix)
        if module == name or partner is None:
            raise UnsupportedModelError(
                f"The adapter {path} holds {ascii(name)[1:-1]}, which is no half of a pair "
                f"*{a_suffix} and *{b_suffix}; {_MERGED}."
            )
        a, b = tensor.shape, partner.shape
        if (
            len(a) not in (2, 3)
            or a[:-2] != b[:-2]
            or len(a) != len(b)
            or a[-2] != b[-1]
            or not a[-2]
        ):
            raise CheckpointError(
                f"The adapter {path} has {ascii(module)[1:-1]} with A {list(a)} and B {list(b)}; "
                "they must be [rank, in] and [out, rank]."
            )
        yield module, tensor, partner


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{path} cannot be read: {error.strerror or error}.")
