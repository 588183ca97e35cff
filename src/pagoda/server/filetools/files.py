"""read_file, write_file and edit_file."""

import os
from pathlib import Path
from typing import Any

from pagoda.base.whole import whole_file
from pagoda.server.filetools.paths import RefusedError, check_regular, is_binary, open_regular

MAX_READ = 16 * 1024
"""Bytes of a file that one answer has."""
MAX_EDITED = 16 * 1024 * 1024
"""Bytes of a file that is edited."""
_LOOKED_AT = 8192
"""Bytes from the start of a file that tell whether it is a text."""
_NEW_FILE = 0o666

Answer = dict[str, Any]


def read_file(
    path: Path, *, start_line: int, end_line: int, append_loc: bool, **_: object
) -> Answer:
    """Lines `start_line` to `end_line`, both included; -1 is the last."""
    last = end_line if end_line > 0 else float("inf")
    parts: list[str] = []
    size, number, note = 0, 1, ""
    with open_regular(path) as file:
        if is_binary(file.read(_LOOKED_AT)):
            raise RefusedError(f"{path} is no text but binary; it cannot be shown.")
        file.seek(0)
        while number <= last and (piece := file.readline(MAX_READ + 1)):
            if number >= start_line:
                if size + len(piece) > MAX_READ:
                    note = _note(number, cut=not parts)
                    if not parts:
                        parts.append(piece[:MAX_READ].decode(errors="ignore"))
                    break
                text = _decoded(path, piece, number)
                parts.append(f"{number}→{text}" if append_loc else text)
                size += len(piece)
            number += piece.endswith(b"\n")
    if not parts and start_line > 1:
        raise RefusedError(f"{path} ends before line {start_line}; it has {number - 1} lines.")
    return {"plain_text_response": "".join(parts) + note}


def _note(number: int, *, cut: bool) -> str:
    if cut:
        return (
            f"\n[Line {number} has more than {MAX_READ} bytes and is cut here. "
            f"Read on with start_line={number + 1}.]"
        )
    return f"[The file goes on. Read on with start_line={number}.]"


def _decoded(path: Path, piece: bytes, line: int) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        raise RefusedError(
            f"{path} is not UTF-8 (line {line}); convert it first, for instance with iconv."
        ) from None


def write_file(path: Path, *, content: str, **_: object) -> Answer:
    target = Path(os.path.realpath(path))
    mode = _mode_of(target)
    data = _encoded(content)
    target.parent.mkdir(parents=True, exist_ok=True)
    _put(target, data, mode)
    return {"result": "file written successfully", "path": str(path), "bytes": len(data)}


def edit_file(path: Path, *, edits: list[dict[str, str]], **_: object) -> Answer:
    """All edits or none: each old text is there once, and no two touch."""
    target = Path(os.path.realpath(path))
    with open_regular(target) as file:
        mode = os.fstat(file.fileno()).st_mode
        data = file.read(MAX_EDITED + 1)
    if len(data) > MAX_EDITED:
        raise RefusedError(f"{path} has more than {MAX_EDITED} bytes; edit it by a command.")
    if is_binary(data):
        raise RefusedError(f"{path} is no text but binary; it cannot be edited.")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise RefusedError(f"{path} is not UTF-8; convert it first.") from None
    edited = _edited(str(path), text, edits)
    if edited == text:
        raise RefusedError("No changes made: the new texts are the old ones.")
    _put(target, _encoded(edited), mode)
    return {
        "result": "file edited successfully",
        "path": str(path),
        "edits_applied": len(edits),
    }


def _edited(path: str, text: str, edits: list[dict[str, str]]) -> str:
    # Models write \n where the file has \r\n throughout.
    is_dos = "\r\n" in text and "\n" not in text.replace("\r\n", "")
    places: list[tuple[int, int, str, int]] = []
    for index, edit in enumerate(edits):
        old, new = edit["old_text"], edit["new_text"]
        if is_dos:
            old, new = _dos(old), _dos(new)
        at = text.find(old)
        if at < 0:
            raise RefusedError(
                f"edits[{index}].old_text is not in {path}. It must match exactly, spaces and line "
                "breaks too: read the file again, and copy the text from there."
            )
        if text.find(old, at + 1) >= 0:
            raise RefusedError(
                f"edits[{index}].old_text is more than once in {path}, and it must be unique: take "
                "in lines around it."
            )
        places.append((at, at + len(old), new, index))
    places.sort()
    for before, after in zip(places, places[1:], strict=False):
        if before[1] > after[0]:
            raise RefusedError(
                f"edits[{before[3]}] and edits[{after[3]}] overlap in {path}; make them one."
            )
    parts, end = [], 0
    for start, stop, new, _ in places:
        parts += [text[end:start], new]
        end = stop
    return "".join([*parts, text[end:]])


def _dos(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RefusedError("The text has half of a surrogate pair, which no file holds.") from None


def _mode_of(target: Path) -> int | None:
    """Permissions to keep; None for a file that is not there yet."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    check_regular(target, mode)
    return mode


def _put(target: Path, data: bytes, mode: int | None) -> None:
    with whole_file(target, _NEW_FILE) as file:
        file.write(data)
        if mode is not None:
            os.fchmod(file.fileno(), mode & 0o7777)
