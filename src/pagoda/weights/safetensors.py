"""Safetensors checkpoints: one file, or shards listed by `model.safetensors.index.json`.

Format: 8 bytes of header length, a JSON header, the tensors' bytes without holes or overlaps
(huggingface/safetensors, README "Format").
"""

import json
import re
import struct
from pathlib import Path
from typing import Any

from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.formats import FORMATS, SAFETENSORS_NAMES
from pagoda.weights.jsonfile import parse_json, read_json
from pagoda.weights.mapped import MappedCheckpoint, MappedFile, Place, count_elements
from pagoda.weights.pointer import refuse_pointer

INDEX_NAME = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth")
_MAX_HEADER = 100_000_000  # the safetensors library's own limit
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.safetensors$")


class SafetensorsCheckpoint(MappedCheckpoint):
    """A `.safetensors` file, or a folder that holds a model in one or many.

    Raises CheckpointError for a broken or hostile file, naming the file and the place.
    """

    def __init__(self, path: Path | str):
        path = Path(path)
        tensors: dict[str, TensorInfo] = {}
        places: dict[str, Place] = {}
        metadata: dict[str, Any] = {}
        index = path / INDEX_NAME
        wanted = _read_index(index) if index.is_file() else None
        for shard in _shard_paths(path, wanted):
            part = _Shard(shard)
            metadata |= part.metadata
            for name, info in part.tensors.items():
                if wanted is not None and wanted.get(name) != shard.name:
                    continue
                if name in tensors:
                    raise CheckpointError(f"{shard}: tensor {name!r} is in another file too.")
                tensors[name] = info
                places[name] = part.places[name]
        for name, shard_name in (wanted or {}).items():
            if name not in tensors:
                raise CheckpointError(
                    f"{path / shard_name} lacks tensor {name!r}, which {INDEX_NAME} puts there."
                )
        super().__init__(tensors, metadata, places)


def weight_files(folder: Path) -> list[Path]:
    """The folder's own weights: `model.safetensors`, a set of shards or a single file."""
    whole = folder / "model.safetensors"
    if whole.is_file():
        return [whole]
    found = sorted(folder.glob("*.safetensors"))
    # Mistral's repositories carry every weight twice, once in this form.
    plain = [path for path in found if not path.name.startswith("consolidated")]
    return plain or found


def _shard_paths(path: Path, wanted: dict[str, str] | None) -> list[Path]:
    if not path.is_dir():
        return [path]
    if wanted is not None:
        shards = [path / name for name in sorted(set(wanted.values()))]
    else:
        shards = weight_files(path)
        if not shards:
            raise CheckpointError(f"{path} holds no safetensors weights{_instead(path)}")
        shards = _complete(shards)
    for shard in shards:
        if not shard.is_file():
            raise CheckpointError(f"{shard} is missing; fetch the model again.")
    return shards


def _complete(found: list[Path]) -> list[Path]:
    """Shards without an index: all that their names promise; or a single file."""
    match = _SHARD.search(found[0].name)
    if match is None:
        if len(found) > 1:
            names = ", ".join(path.name for path in found[:5])
            raise CheckpointError(
                f"{found[0].parent} holds several checkpoints ({names}); name one of them."
            )
        return found
    stem, count = found[0].name[: match.start()], int(match[2])
    folder = found[0].parent
    return [folder / f"{stem}-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]


def _read_index(index: Path) -> dict[str, str]:
    """Tensor name -> file name beside the index."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map; fetch it again.")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard or shard in ("", ".", ".."):
            raise CheckpointError(f"{index} puts tensor {name!r} into {shard!r}, no file name.")
    return weight_map


class _Shard:
    """One file's tensors."""

    def __init__(self, path: Path):
        self.file = MappedFile(path)
        header, data_start = self._header()
        self.metadata = header.pop("__metadata__", None) or {}
        if not isinstance(self.metadata, dict):
            raise CheckpointError(f"{path}: __metadata__ is no object.")
        self.tensors: dict[str, TensorInfo] = {}
        self.places: dict[str, Place] = {}
        spans: list[tuple[int, int, str]] = []
        for name, entry in header.items():
            info, begin = _tensor(path, name, entry)
            self.tensors[name] = info
            self.places[name] = Place(self.file, data_start + begin)
            spans.append((begin, begin + info.nbytes, name))
        self._check_spans(sorted(spans), self.file.size - data_start)

    def _header(self) -> tuple[dict[str, Any], int]:
        path = self.file.path
        end = header_end(path, self.file.map[:8], self.file.size)
        return parse_json(self.file.map[8:end], f"The header of {path}"), end

    def _check_spans(self, spans: list[tuple[int, int, str]], size: int) -> None:
        path, position = self.file.path, 0
        for begin, end, name in spans:
            if end > size:
                raise CheckpointError(
                    f"{path} is cut short: tensor {name!r} ends at byte {end} of the data, which "
                    f"has {size}. Fetch it again."
                )
            if begin != position:
                what = "overlaps another" if begin < position else "has a hole before it"
                raise CheckpointError(f"{path}: tensor {name!r} (data byte {begin}) {what}.")
            position = end
        if position != size:
            raise CheckpointError(f"{path} has {size - position} bytes that belong to no tensor.")


def _instead(folder: Path) -> str:
    """What a folder without safetensors weights has, and what to do."""
    if any(file.suffix in _PICKLES for file in folder.iterdir()):
        return ", but pickles, which Pagoda does not load. Choose a converted copy of the model."
    return "; fetch them, or pass --load-format dummy for random ones."


def header_end(path: Path, start: bytes | bytearray, size: int) -> int:
    """Where the tensors of a file of `size` bytes begin; `start` are its first 8 or more."""
    if size < 8:
        raise CheckpointError(f"{path} is no safetensors file: it has {size} bytes.")
    length: int = struct.unpack_from("<Q", start)[0]
    if length > min(_MAX_HEADER, size - 8):
        refuse_pointer(path, start)
        raise CheckpointError(
            f"{path} says that its header has {length} bytes, which it cannot have: it is "
            "broken, cut short or no safetensors file. Fetch it again."
        )
    return 8 + length


def _tensor(path: Path, name: str, entry: object) -> tuple[TensorInfo, int]:
    """Check one entry of a header; the tensor and where it begins."""
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise CheckpointError(f"{path}: tensor {name!r} lacks dtype, shape or data_offsets.")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _all_sizes(shape) or not _all_sizes(offsets) or len(offsets) != 2:
        raise CheckpointError(
            f"{path}: tensor {name!r} has the shape {json.dumps(shape)[:80]} and the offsets "
            f"{json.dumps(offsets)[:80]}; both must be lists of whole numbers."
        )
    dtype = entry["dtype"]
    if not isinstance(dtype, str) or dtype not in SAFETENSORS_NAMES:
        raise UnsupportedModelError(f"{path}: tensor {name!r} has the unknown type {dtype!r}.")
    stored = FORMATS[dtype]
    begin, end = offsets
    try:
        nbytes = stored.nbytes(count_elements(tuple(shape)))
        stored.nbytes(shape[-1] if shape else 1)
    except ValueError as error:
        raise CheckpointError(f"{path}: tensor {name!r}: {error}.") from error
    if end - begin != nbytes:
        raise CheckpointError(
            f"{path}: tensor {name!r} of {stored.name} {shape} needs {nbytes} bytes, but its "
            f"offsets {offsets} hold {end - begin}."
        )
    return TensorInfo(name, tuple(shape), stored.name, nbytes), begin


def _all_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
