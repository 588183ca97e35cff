"""GGUF files, versions 2 and 3, little-endian; single or split.

Format: ggml's docs/gguf.md. Every count and offset of the file is checked before it is used: the
file comes from the internet.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.formats import GGML_FORMATS, RETIRED_GGML_IDS
from pagoda.weights.gguf.header import Cursor, read_metadata
from pagoda.weights.mapped import MappedCheckpoint, MappedFile, Place, count_elements

_SPLIT = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
_MAX_TENSORS = 1 << 20
_MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
_DEFAULT_ALIGNMENT = 32


def split_paths(path: Path) -> list[Path]:
    """All parts of the split model that `path` is one part of, in order; else just `path`."""
    match = _SPLIT.match(path.name)
    if match is None:
        return [path]
    stem, count = match["stem"], int(match["count"])
    return [path.with_name(f"{stem}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]


class GgufCheckpoint(MappedCheckpoint):
    """A GGUF model: one path (of any part, if it is split) or the list of all its parts.

    Raises CheckpointError for a broken or hostile file, naming the file and the place.
    """

    def __init__(self, path: Path | str | Sequence[Path | str]):
        if isinstance(path, Path | str):
            paths = split_paths(Path(path))
        else:
            paths = [Path(part) for part in path]
        missing = [part for part in paths if not part.is_file()]
        if missing:
            raise CheckpointError(f"{missing[0]} is missing; fetch the model again.")
        parts = [_Part(part) for part in paths]
        tensors: dict[str, TensorInfo] = {}
        places: dict[str, Place] = {}
        for part in parts:
            for name in part.tensors.keys() & tensors.keys():
                raise CheckpointError(f"{part.file.path}: tensor {name!r} is in another part too.")
            tensors.update(part.tensors)
            places.update(part.places)
        super().__init__(tensors, parts[0].metadata, places)
        self._check_split(parts)

    def _check_split(self, parts: list["_Part"]) -> None:
        first = parts[0].file.path
        for number, part in enumerate(parts):
            count = part.metadata.get("split.count", 1)
            if count not in (0, len(parts)):
                raise CheckpointError(
                    f"{part.file.path} is one of {count} parts (split.count), but {len(parts)} "
                    "are here; keep all parts in one folder under their original names."
                )
            if part.metadata.get("split.no", number) != number:
                raise CheckpointError(f"{part.file.path} is not part {number + 1} (split.no).")
        expected = self.metadata.get("split.tensors.count", len(self.tensors))
        if len(parts) > 1 and expected != len(self.tensors):
            raise CheckpointError(
                f"{first}: the parts hold {len(self.tensors)} tensors instead of {expected}."
            )


class _Part:
    """One file's metadata and tensor table."""

    def __init__(self, path: Path):
        self.file = MappedFile(path)
        cursor = Cursor(path, self.file.map)
        self.metadata, offsets = read_header(cursor)
        self.tensors = {info.name: info for _, info in offsets}
        self.places: dict[str, Place] = {}
        self._place(cursor, offsets)

    def _place(self, cursor: Cursor, offsets: list[tuple[int, TensorInfo]]) -> None:
        """Check that the tensors lie aligned, apart and inside the file."""
        path = self.file.path
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise CheckpointError(f"{path}: general.alignment is {alignment!r}, no power of two.")
        data_start = -(-cursor.offset // alignment) * alignment
        end = 0
        for offset, info in sorted(offsets, key=lambda item: (item[0], item[1].nbytes)):
            if offset % alignment:
                raise CheckpointError(
                    f"{path}: tensor {info.name!r} lies at {offset}, not a multiple of {alignment}."
                )
            if offset < end and info.nbytes:
                raise CheckpointError(f"{path}: tensor {info.name!r} overlaps another.")
            end = offset + info.nbytes
            if data_start + end > self.file.size:
                raise CheckpointError(
                    f"{path} is cut short: tensor {info.name!r} ends at byte {data_start + end}, "
                    f"the file at {self.file.size}. Fetch it again."
                )
            self.places[info.name] = Place(self.file, data_start + offset)


def read_header(cursor: Cursor) -> tuple[dict[str, Any], list[tuple[int, TensorInfo]]]:
    """The key-values, and the tensors with where they say they lie; leaves the cursor behind."""
    tensor_count, metadata = read_metadata(cursor)
    if tensor_count > _MAX_TENSORS:
        raise cursor.error(f"says that it has {tensor_count} tensors")
    names: set[str] = set()
    tensors = []
    for _ in range(tensor_count):
        info, offset = _read_tensor(cursor)
        if info.name in names:
            raise cursor.error(f"has two tensors named {info.name!r}")
        names.add(info.name)
        tensors.append((offset, info))
    return metadata, tensors


def _read_tensor(cursor: Cursor) -> tuple[TensorInfo, int]:
    name = cursor.name("tensor")
    dimensions = cursor.u32()
    if dimensions > _MAX_DIMENSIONS:
        raise cursor.error(f"gives tensor {name!r} {dimensions} dimensions; GGUF allows 4")
    shape = tuple(reversed([cursor.u64() for _ in range(dimensions)]))
    type_id = cursor.u32()
    offset = cursor.u64()
    stored = GGML_FORMATS.get(type_id)
    if stored is None:
        known = RETIRED_GGML_IDS.get(type_id)
        reason = f"the retired type {known}" if known else f"type {type_id}, unknown here"
        raise UnsupportedModelError(
            f"{cursor.path}: tensor {name!r} is stored as {reason}; convert the model anew."
        )
    try:
        count_elements(shape)
        row_bytes = stored.nbytes(shape[-1] if shape else 1)
    except ValueError as error:
        raise CheckpointError(f"{cursor.path}: tensor {name!r}: {error}.") from error
    return TensorInfo(name, shape, stored.name, row_bytes * count_elements(shape[:-1])), offset
