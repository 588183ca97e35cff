"""Weights of sentence-transformers' modules, which lie in folders of their own beside a model's."""

from pathlib import Path
from typing import Any

from pagoda.base.errors import CheckpointError
from pagoda.weights.checkpoint import Checkpoint
from pagoda.weights.joined import JoinedCheckpoint, PrefixedCheckpoint
from pagoda.weights.jsonfile import read_json_list
from pagoda.weights.safetensors import SafetensorsCheckpoint

MODULES = "modules.json"


def is_dense(entry: Any) -> bool:
    """Whether an entry of modules.json is a linear layer."""
    kind = entry.get("type") if isinstance(entry, dict) else None
    return isinstance(kind, str) and kind.rpartition(".")[2] == "Dense"


def dense_paths(folder: Path) -> list[Path]:
    """The weight files of the folder's linear layers, in order."""
    path = folder / MODULES
    entries = read_json_list(path) if path.is_file() else []
    names = [str(entry.get("path")) for entry in entries if is_dense(entry)]
    for name in names:
        if Path(name).name != name:
            raise CheckpointError(f"{path}: {name!r} is no name of a folder; fetch the file again.")
    return [folder / name / "model.safetensors" for name in names]


def with_dense_layers(model: Checkpoint, folder: Path) -> Checkpoint:
    """With the tensors of linear layers that modules.json names, `2_Dense/linear.weight`.

    CheckpointError where their weights are missing.
    """
    for path in dense_paths(folder):
        if not path.is_file():
            raise CheckpointError(
                f"{path} is missing, and modules.json names it; fetch the model again, or save it "
                "anew with sentence-transformers where it has a pickle (pytorch_model.bin)."
            )
        name = path.parent.name
        layer = PrefixedCheckpoint(SafetensorsCheckpoint(path), f"{name}/")
        model = JoinedCheckpoint(model, layer, f"module {name}")
    return model
