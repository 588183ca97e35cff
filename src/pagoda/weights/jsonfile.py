"""JSON that comes with a model: read with a size limit, and with complete sentences on failure."""

import json
import math
from pathlib import Path
from typing import Any

from pagoda.base.errors import CheckpointError
from pagoda.weights.pointer import refuse_pointer

# tokenizer.json of the largest vocabularies has about 35 MB.
_MAX_BYTES = 256 << 20
# tokenizer_config.json says int(1e30) for "no limit"; nothing healthy says more.
_MAX_INTEGER = 10**38
# Where healthy files say Infinity: Mamba 2 bounds the steps of its time so.
_MAY_BE_INFINITE = "time_step_limit"


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
    """The object that `text` holds; `what` starts the message.

    A key given twice is an error, and so is what no field means and few readers survive: numbers
    that are not finite or beyond any type, and halves of characters (lone surrogates).
    """
    value = parse_value(text, what)
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} is not a JSON object; fetch it again.")
    return value


def parse_value(text: bytes | bytearray, what: str) -> Any:
    """What `text` holds, as `parse_json` reads it, be it an object or not."""
    try:
        value = json.loads(text.decode(), object_pairs_hook=_checked)
        if isinstance(value, dict):
            return value
        _refuse_odd("its value", value)
        return value
    except RecursionError as error:
        raise CheckpointError(f"{what} is nested too deeply; fetch it again.") from error
    except ValueError as error:
        refuse_pointer(what, text)
        raise CheckpointError(f"{what} is not valid JSON ({error}); fetch it again.") from error


def _checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r} is there twice")
            seen.add(key)
    for key, value in pairs:
        _refuse_odd("a key", key)
        if key != _MAY_BE_INFINITE:
            _refuse_odd(key, value)
    return entries


def _refuse_odd(place: str, value: Any) -> None:
    """Raises ValueError. Objects within were checked when they ended."""
    if isinstance(value, str):
        if not value.isascii():
            _refuse_half_characters(place, value)
    elif isinstance(value, list):
        for item in value:
            _refuse_odd(place, item)
    elif isinstance(value, int):
        if abs(value) > _MAX_INTEGER:
            raise ValueError(f"{place} is a number of {len(str(abs(value)))} digits")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{place} is {value}, which is no number")


def _refuse_half_characters(place: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{place} has the lone surrogate U+{ord(value[error.start]):04X}"
        ) from None
