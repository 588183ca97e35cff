"""file_glob_search and grep_search: what lies in a folder, within bounds of time and size."""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pagoda.server.filetools.paths import RefusedError, check_regular, is_binary, open_regular

MAX_FOUND = 100
"""Entries or matches in one answer."""
MAX_ANSWER = 64 * 1024
"""Characters of matches in one answer."""
_MAX_ENTRIES = 500_000
_MAX_LINE = 500
"""Characters of a line that are shown."""
_LONG_LINE = 1024 * 1024
"""Bytes after which a line counts as two: a file may have no line break."""
_LOOKED_AT = 8192
_SECONDS = 10.0
"""After which a search ends with what it has."""
_JUNK = frozenset(
    (
        ".git",
        ".svn",
        ".hg",
        "node_modules",
        "__pycache__",
        ".venv",
        "venv",
        "dist",
        "build",
        "target",
        ".cache",
        ".idea",
        ".vscode",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".tox",
    )  # fmt: skip
)
"""Folders that are named and never walked: what is in them is made from something else."""

Answer = dict[str, Any]


class Walk:
    """Entries below a folder as (path relative to it, whether it is a folder), in order of names.

    A link to a folder is named and not followed, so no loop is walked. Neither are the folders of
    `_JUNK`; the base itself may be one.
    """

    def __init__(self, base: Path, max_depth: int = 0):
        self._base = base
        self._max_depth = max_depth
        self.until = time.monotonic() + _SECONDS
        self.is_cut = False
        """Whether there is more than was walked."""

    def __iter__(self) -> Iterator[tuple[str, bool]]:
        os.listdir(self._base)  # one that cannot be read is an error, one within it is not
        left, seen = [("", 1)], 0
        while left:
            folder, depth = left.pop()
            below = []
            for name, is_dir, is_link in self._entries(folder):
                seen += 1
                if seen > _MAX_ENTRIES or time.monotonic() > self.until:
                    self.is_cut = True
                    return
                path = f"{folder}{name}"
                yield path, is_dir
                deeper = not self._max_depth or depth < self._max_depth
                if is_dir and not is_link and deeper and name.lower() not in _JUNK:
                    below.append((f"{path}/", depth + 1))
            left += reversed(below)

    def _entries(self, folder: str) -> list[tuple[str, bool, bool]]:
        """Name, whether it is a folder, whether it is a link; files and folders alone."""
        try:
            with os.scandir(self._base / folder) as found:
                return sorted(
                    (entry.name, entry.is_dir(), entry.is_symlink())
                    for entry in found
                    if entry.is_dir() or entry.is_file()
                )
        except OSError:
            self.is_cut = True
            return []


def file_glob_search(
    path: Path, *, include: str, exclude: str, type: str, max_depth: int, limit: int, **_: object
) -> Answer:
    if not path.is_dir():
        raise RefusedError(f"{path} is no folder; name one to search in.")
    wanted = {"file": (False,), "dir": (True,), "all": (False, True)}[type]
    fits = _filter(include, exclude)
    walk = Walk(path, max_depth)
    found, total = [], 0
    for name, is_dir in walk:
        if is_dir in wanted and fits(name):
            total += 1
            if total <= min(limit, MAX_FOUND):
                found.append((name, is_dir))
    lines = [f"{name}/" if is_dir else name for name, is_dir in found]
    lines += ["", "---", f"Total matches: {total}"]
    if total > len(found):
        lines.append(f"[The first {len(found)} are shown; narrow `include` or `path`.]")
    lines += _cut_note(walk.is_cut)
    entries = [{"path": name, "type": "dir" if is_dir else "file"} for name, is_dir in found]
    text = "\n".join(lines) + "\n"
    return {"plain_text_response": text, "entries": entries, "base": str(path)}


def _cut_note(is_cut: bool) -> list[str]:
    return ["[Not everything was searched: too much, or not readable.]"] if is_cut else []


def grep_search(
    path: Path,
    *,
    pattern: str,
    include: str,
    exclude: str,
    return_line_numbers: bool,
    literal: bool,
    ignore_case: bool,
    context_lines: int,
    **_: object,
) -> Answer:
    try:
        wanted = re.compile(
            re.escape(pattern) if literal else pattern, re.IGNORECASE if ignore_case else 0
        )
    except (re.error, RecursionError, OverflowError) as error:
        raise RefusedError(
            f"invalid regex: {error}. Set `literal` to search for the text as it stands."
        ) from None
    report = _Report(wanted, context_lines, return_line_numbers or context_lines > 0)
    is_cut = False
    if path.is_dir():
        walk, fits = Walk(path), _filter(include, exclude)
        for name, is_dir in walk:
            if not is_dir and fits(name) and not report.is_full:
                report.search(path / name, name, walk.until)
        is_cut = walk.is_cut or time.monotonic() > walk.until
    else:
        check_regular(path, path.stat().st_mode)
        report.search(path, path.name, time.monotonic() + _SECONDS)
    lines = [*report.lines, "", "---", f"Total matches: {report.total}"]
    if report.is_full:
        lines.append("[There may be more; narrow `pattern`, `path` or `include`.]")
    return {"plain_text_response": "\n".join(lines + _cut_note(is_cut)) + "\n"}


class _Report:
    """Matches as lines `NAME:TEXT`, with lines around them as `NAME-TEXT`."""

    def __init__(self, pattern: re.Pattern[str], context: int, numbered: bool):
        self._pattern = pattern
        self._context = context
        self._numbered = numbered
        self._size = 0
        self.lines: list[str] = []
        self.total = 0

    @property
    def is_full(self) -> bool:
        return self.total >= MAX_FOUND or self._size > MAX_ANSWER

    def search(self, path: Path, name: str, until: float) -> None:
        """A file that cannot be read, or is no text, has no matches."""
        try:
            with open_regular(path) as file:
                if is_binary(file.read(_LOOKED_AT)):
                    return
                file.seek(0)
                pieces = iter(lambda: file.readline(_LONG_LINE), b"")
                self._search(pieces, name, until)
        except (OSError, RefusedError):
            return

    def _search(self, pieces: Iterator[bytes], name: str, until: float) -> None:
        before: deque[tuple[int, str]] = deque(maxlen=self._context)
        after = 0  # lines to show behind the last match
        for number, piece in enumerate(pieces, 1):
            if (self.is_full and not after) or time.monotonic() > until:
                return
            line = piece.decode(errors="replace").rstrip("\r\n")
            if not self.is_full and self._pattern.search(line):
                if self._context and self.lines and not after:
                    self.lines.append("--")
                for place, text in before:
                    self._show(name, place, text, "-")
                before.clear()
                self._show(name, number, line, ":")
                self.total += 1
                after = self._context
            elif after:
                self._show(name, number, line, "-")
                after -= 1
            else:
                before.append((number, line))

    def _show(self, name: str, number: int, line: str, mark: str) -> None:
        place = f"{number}{mark}" if self._numbered else ""
        more = len(line) - _MAX_LINE
        text = line if more <= 0 else f"{line[:_MAX_LINE]} [and {more} characters more]"
        self.lines.append(f"{name}{mark}{place}{text}")
        self._size += len(self.lines[-1])


def _filter(include: str, exclude: str) -> Callable[[str], bool]:
    wanted = _glob(include or "**")
    unwanted = _glob(exclude) if exclude else None

    def fits(name: str) -> bool:
        return bool(wanted.fullmatch(name)) and not (unwanted and unwanted.fullmatch(name))

    return fits


def _glob(pattern: str) -> re.Pattern[str]:
    """A pattern without `/` is that of a name at any depth, another that of a path's end; one that
    begins with `/` starts at the folder that is searched."""
    anchored = pattern.startswith("/")
    body = pattern.strip("/") if anchored else pattern.rstrip("/").removeprefix("./")
    parts = ["" if anchored or body.startswith("**") else "(?:.*/)?"]
    for token in re.findall(r"\*\*/|\*\*|\[!?\]?[^\]]*\]|.", body, re.DOTALL):
        if token == "**/":
            parts.append("(?:.*/)?")
        elif token == "**":
            parts.append(".*")
        elif token in ("*", "?"):
            parts.append("[^/]*" if token == "*" else "[^/]")
        elif len(token) > 2:
            inner = token[1:-1].replace("\\", r"\\").replace("[", r"\[")
            parts.append(f"[{'^' + inner[1:] if inner.startswith('!') else inner}]")
        else:
            parts.append(re.escape(token))
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error:
        raise RefusedError(f"The glob pattern {pattern!r} cannot be read.") from None
