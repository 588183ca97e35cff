"""A model's files, once they are on this machine: weights, config and defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pagoda.base.errors import CheckpointError, ConfigError
from pagoda.weights.checkpoint import Checkpoint
from pagoda.weights.choice import is_gguf_model
from pagoda.weights.gguf.checkpoint import GgufCheckpoint, split_paths
from pagoda.weights.gguf.projector import find_projector
from pagoda.weights.joined import HEAD_PREFIX, JoinedCheckpoint, PrefixedCheckpoint
from pagoda.weights.jsonfile import read_json
from pagoda.weights.mxfp4 import Mxfp4Checkpoint
from pagoda.weights.pointer import START, refuse_pointer
from pagoda.weights.prequantized.select import method_of
from pagoda.weights.safetensors import INDEX_NAME, SafetensorsCheckpoint, weight_files
from pagoda.weights.sentence import dense_paths, with_dense_layers
from pagoda.weights.upright import UprightCheckpoint

# Sampling defaults in a GGUF that generation_config.json has under other names.
_GGUF_SAMPLING = "general.sampling."
_RENAMED = {"temp": "temperature", "penalty_repeat": "repetition_penalty"}


@dataclass(frozen=True)
class ModelFiles:
    """What lies at a path; headers are read when they are first asked for."""

    path: Path
    """The GGUF (its first part), the safetensors file, or the folder."""
    kind: Literal["gguf", "safetensors"]
    config: dict[str, Any] | None
    """config.json; None for a GGUF, whose metadata says the same."""
    projector: Path | None = None
    """A GGUF's vision tower, which lies in a file of its own."""
    draft_head: "ModelFiles | None" = None
    """A head that guesses for the model, of another checkpoint."""

    @property
    def folder(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    def weight_paths(self) -> list[Path]:
        """The files that hold the weights."""
        head = [] if self.draft_head is None else self.draft_head.weight_paths()
        if self.kind == "gguf":
            return split_paths(self.path) + ([self.projector] if self.projector else []) + head
        own = [self.path] if self.path.is_file() else weight_files(self.path)
        return own + dense_paths(self.folder) + head

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The weights; CheckpointError when there are none, or broken ones, and
        UnsupportedModelError for a quantization that is not known. A draft head's have names of
        their own (`HEAD_PREFIX`)."""
        if self.draft_head is not None:
            head = PrefixedCheckpoint(self.draft_head.checkpoint, HEAD_PREFIX)
            alone = replace(self, draft_head=None).checkpoint
            return JoinedCheckpoint(alone, head, "draft head")
        if self.kind == "gguf":
            model = GgufCheckpoint(self.path)
            if self.projector is None:
                return model
            return JoinedCheckpoint(model, GgufCheckpoint(self.projector), "projector")
        method = method_of(self.config)
        plain = UprightCheckpoint(SafetensorsCheckpoint(self.path))
        if method is None:
            return with_dense_layers(Mxfp4Checkpoint(plain), self.folder)
        from pagoda.weights.prequantized.checkpoint import PublishedCheckpoint  # needs numpy

        return PublishedCheckpoint(plain, method)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """A GGUF's key-values; empty for safetensors."""
        return self.checkpoint.metadata if self.kind == "gguf" else {}

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """Sampling defaults under generation_config.json's names; empty if the model has none.

        The file beside the weights wins over what a GGUF says in its metadata.
        """
        names = {
            key: key.removeprefix(_GGUF_SAMPLING)
            for key in self.metadata
            if key.startswith(_GGUF_SAMPLING)
        }
        inside = {_RENAMED.get(name, name): self.metadata[key] for key, name in names.items()}
        path = self.folder / "generation_config.json"
        return inside | (read_json(path) if path.is_file() else {})


def open_model(path: Path, mmproj: str | None = None) -> ModelFiles:
    """Look at a file or folder; raises CheckpointError when no model is there, ConfigError for an
    `mmproj` (the file with a GGUF's vision tower) that does not go with it.

    A folder with a config.json is a Hugging Face model, even without weights (for planning and
    dummy weights), and the config.json itself stands for it; a folder with one GGUF stands for
    that GGUF.
    """
    files = _open(path)
    if files.kind == "gguf":
        return replace(files, projector=find_projector(files.path, mmproj))
    if mmproj is not None:
        raise ConfigError(
            f"--mmproj {mmproj} goes with a GGUF; {path} brings its own vision tower."
        )
    return files


def _open(path: Path) -> ModelFiles:
    if path.is_file():
        return _open_file(path)
    if not path.is_dir():
        what = "is neither a file nor a folder" if path.exists() else "does not exist"
        raise CheckpointError(f"{path} {what}.")
    ggufs = _gguf_models(path)
    config = path / "config.json"
    if has_safetensors(path) or (config.is_file() and not ggufs):
        return ModelFiles(path, "safetensors", _read_config(config))
    if len(ggufs) > 1:
        names = ", ".join(gguf.name for gguf in ggufs[:5])
        raise CheckpointError(
            f"{path} holds several GGUF models ({names}); name one of them, or write {path}:QUANT."
        )
    if ggufs:
        return ModelFiles(ggufs[0], "gguf", None)
    raise CheckpointError(f"{path} holds no model: neither a config.json nor a GGUF.")


def _read_config(path: Path) -> dict[str, Any] | None:
    """config.json, if it is there; how early checkpoints of ModelOpt are quantized is said in a
    file beside it."""
    if not path.is_file():
        return None
    config = read_json(path)
    beside = path.with_name("hf_quant_config.json")
    if config.get("quantization_config") or not beside.is_file():
        return config
    told = read_json(beside).get("quantization")
    if not isinstance(told, dict) or not told.get("quant_algo"):
        return config
    ignored = told.get("exclude_modules")
    method = {"quant_method": "modelopt", "ignore": ignored, **told}
    return config | {"quantization_config": method}


def has_safetensors(folder: Path) -> bool:
    return (folder / INDEX_NAME).is_file() or bool(weight_files(folder))


def _open_file(path: Path) -> ModelFiles:
    if path.name == "config.json":
        return ModelFiles(path.parent, "safetensors", _read_config(path))
    if path.suffix == ".safetensors":
        return ModelFiles(path, "safetensors", _read_config(path.parent / "config.json"))
    try:
        with path.open("rb") as file:
            start = file.read(START)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not start.startswith(b"GGUF"):
        refuse_pointer(path, start)
        raise CheckpointError(
            f"{path} is neither a GGUF nor a .safetensors file; Pagoda reads no other weights."
        )
    return ModelFiles(split_paths(path)[0], "gguf", None)


def _gguf_models(folder: Path) -> list[Path]:
    """First parts of the GGUF models in a folder."""
    found = [path for path in sorted(folder.glob("*.gguf")) if is_gguf_model(path.name)]
    return list(dict.fromkeys(split_paths(path)[0] for path in found))
