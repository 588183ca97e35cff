"""JSON that comes with a model: read with a size limit, and with complete sentences on failure."""

import json
from pathlib import Path
from typing import Any

from pagoda.base.errors import CheckpointError

# tokenizer.json of the largest vocabularies has about 35 MB.
_MAX_BYTES = 256 << 20


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; CheckpointError when it cannot be read or is none."""
    return parse_json(_read(path), str(path))


def read_json_list(path: Path) -> list[Any]:
    """The list in a JSON file; CheckpointError when it cannot be read or is none."""
    value = _parse(_read(path), str(path))
    if not isinstance(value, list):
        raise CheckpointError(f"{path} is not a JSON list; fetch it again.")
    return value


def _read(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise CheckpointError(f"{path} has {size} bytes, too many for a JSON file.")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error


def parse_json(text: bytes, what: str) -> dict[str, Any]:
    """The object that `text` holds; a key given twice is an error. `what` starts the message."""
    value = _parse(text, what)
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} is not a JSON object; fetch it again.")
    return value


def _parse(text: bytes, what: str) -> Any:
    try:
        return json.loads(text.decode(), object_pairs_hook=_unique)
    except RecursionError as error:
        raise CheckpointError(f"{what} is nested too deeply; fetch it again.") from error
    except ValueError as error:
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
