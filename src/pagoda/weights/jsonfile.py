"""JSON that comes with a model: read with a size limit, and with complete sentences on failure."""

import json
from pathlib import Path
from typing import Any

from pagoda.base.errors import CheckpointError
from pagoda.weights.pointer import refuse_pointer

# tokenizer.json of the largest vocabularies has about 35 MB.
_MAX_BYTES = 256 << 20


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; CheckpointError when it cannot be read or is none."""
    return parse_json(_read(path), str(path))


def read_json_list(path: Path) -> list[Any]:
    """The list in a JSON file; CheckpointError when it cannot be read or is none."""
    value = parse_value(_read(path), str(path))
    if not isinstance(value, list):
        raise CheckpointError(f"{path} is not a JSON list; fetch it again.")
    return value


def _read(path: Path) -> bytes:
    try:
        check_size(path, path.stat().st_size)
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error


def check_size(path: Path, size: int) -> None:
    """CheckpointError for more bytes than a JSON file of a model can have."""
    if size > _MAX_BYTES:
        raise CheckpointError(f"{path} has {size} bytes, too many for a JSON file.")


def parse_json(text: bytes | bytearray, what: str) -> dict[str, Any]:
    """The object that `text` holds; a key given twice is an error. `what` starts the message."""
    value = parse_value(text, what)
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} is not a JSON object; fetch it again.")
    return value


def parse_value(text: bytes | bytearray, what: str) -> Any:
    """What `text` holds, as `parse_json` reads it, be it an object or not."""
    try:
        return json.loads(text.decode(), object_pairs_hook=_unique)
    except RecursionError as error:
        raise CheckpointError(f"{what} is nested too deeply; fetch it again.") from error
    except ValueError as error:
        refuse_pointer(what, text)
        raise CheckpointError(f"{what} is not valid JSON ({error}); fetch it again.") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r} is there twice")
            seen.add(key)
    return entries
