"""What the next Enter would send, as far as what was typed and pressed tells.

Nobody sees the line itself, so it is followed as shells edit it. Where a key, a click or a person
may have moved the cursor or the focus, what was typed before is kept as a part of its own that may
be on the same line, on either side of what follows, or elsewhere.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from pagoda_agent.base.errors import DriverError
from pagoda_agent.base.whole import write_whole
from pagoda_agent.consent.readonly import only_reads
from pagoda_agent.input.actions import (
    MAX_REPEAT,
    MAX_TYPED,
    Action,
    Click,
    Drag,
    HidReset,
    Key,
    Move,
    Power,
    Press,
    Release,
    Scroll,
    Type,
)
from pagoda_agent.input.keys import KEYS, SHIFTED

DANGEROUS = re.compile(
    r"""
    \brm\s([^;|&]*\s)?(-\w*[rRf]|--recursive|--force)
    | \brmdir\s+/s | \bdel\s+.*/[sqf]\b | \brd\s+/s
    | \bremove-item\b.*-(recurse|force) | \bshred\b | \bwipefs\b | \bblkdiscard\b
    | \bmkfs | \bmke2fs\b | \bmkswap\b | \bfdisk\b | \bparted\b | \bdiskpart\b
    | \bformat(\.com)?\s+[a-z]:
    | \bdd\b.*\bof= | >\s*/dev/(sd|nvme|vd|hd|mmcblk) | \bhdparm\b | \bcryptsetup\b
    | \b(drop|truncate)\s+(table|database|schema)\b | \bdelete\s+from\b
    | \b(shutdown|reboot|poweroff|halt)\b | \binit\s+[06]\b
    | \bsystemctl\s+(stop|disable|mask|isolate)\b
    | \b(stop|restart)-computer\b | :\(\)\s*\{ | \bkill(all)?\s+(-\S+\s+)*(-1|-9\s+1)\b
    | \b(curl|wget|iwr|irm|invoke-webrequest)\b.*(\||;|&&|\$\(|`)\s*(sudo\s+)?
      \w*(sh|iex|python\d?|perl)\b
    | \bbase64\b.*-d.*\|\s*(sudo\s+)?\w*sh\b | \beval\b | \biex\b
    | \bchmod\s+(-\S*R\S*\s+)?0?777\s+/ | \bch(own|mod|grp)\s+-\S*R\S*\s+\S+\s+/
    | \bmv\b.*\s/dev/null\b
    | \buser(del|mod)\b | (^|[;&|\s])passwd(\s|$)
    | \bvisudo\b | \bnet\s+user\b | \breg\s+delete\b | \bbcdedit\b
    | \bcrontab\s+-r\b | \biptables\s+-F | \bnft\s+flush\b | \bufw\s+(disable|reset)\b
    | \b(apt|apt-get|dnf|yum|pacman|zypper)\s+.*(remove|purge|autoremove|-R\w*)\b
    | \bgit\s+(push\s+.*(-f\b|--force)|reset\s+--hard|clean\s+-\S*f) | \bterraform\s+destroy\b
    | \bkubectl\s+delete\b | \bdocker\s+.*(prune|\brm\b) | \bfind\b.*\s-(delete|exec)\b
    """,
    re.VERBOSE | re.IGNORECASE,
)
# Tab and Control+Alt+E may run what is inside to expand a word. Control+X before E runs the line,
# once it was edited, or keys that were recorded.
_EVALUATED = re.compile(r"[(`]")
# Brings back a line of the shell's history by what is typed.
_RERUNS = re.compile(r"![!\w?#$:-]|\bfc\b")
_MOST_PARTS = 8
# Characters of what is no danger and got too long.
_KEPT = 1000
# At the end of a line: in some shells the next one belongs to it.
_CONTINUES = ("\\", "^", "`")
_SENDS = frozenset("\n\r\v\f\x0f\x85\u2028\u2029")
_CONTROLS = re.compile(r"([\x00-\x08\n-\x1f\x7f\x85\u2028\u2029])")

ENTERS = frozenset({"Enter", "NumpadEnter"})
CONTROL = frozenset({"ControlLeft", "ControlRight"})
ALT = frozenset({"AltLeft", "AltRight"})
SHIFT = frozenset({"ShiftLeft", "ShiftRight"})
META = frozenset({"MetaLeft", "MetaRight"})
# With Control: carriage return, line feed, readline's operate-and-get-next.
_SENDS_WITH_CONTROL = frozenset({"KeyM", "KeyJ", "KeyO"})
# Bring back earlier lines, also with modifiers; the function keys are those of Windows' console.
_RECALLS = frozenset({"ArrowUp", "ArrowDown", "PageUp", "PageDown"}) | {
    f"F{number}" for number in range(1, 10)
}
# With Control or Alt: history, yank, paste and undo.
_RECALLS_WITH_CONTROL = frozenset(
    {"KeyP", "KeyN", "KeyR", "KeyS", "KeyY", "KeyV", "KeyZ", "Minus", "Slash", "Period", "Comma"}
)
# What they do is up to Num Lock.
_NUMPAD = frozenset({*(f"Numpad{digit}" for digit in range(10)), "NumpadDecimal"})


class Danger(NamedTuple):
    shown: str
    """The line, quoted; parts that may not be one line stand beside each other."""
    line: str
    command: str
    """What is dangerous in it."""


class Line(msgspec.Struct, frozen=True):
    before: str = ""
    """Left of the cursor."""
    after: str = ""
    parts: tuple[str, ...] = ()
    """Typed earlier, on this line or elsewhere."""
    earlier: str = ""
    """The last dangerous line that was sent or removed."""
    recalled: bool = False
    """Keys that may bring `earlier` back were pressed since."""
    removed: bool = False
    """`earlier` was here until keys removed it that do something else in some programs."""
    known: bool = False
    """Nothing but `text` stands on it: since it began, keys only typed, or did what they do
    everywhere."""
    typed: int = 0
    """So many Backspaces remove what was typed last, and no more."""
    prefix: bool = False
    """Control+X was pressed last."""

    @property
    def text(self) -> str:
        return self.before + self.after

    @property
    def whole(self) -> str:
        """All that may be on it, in the order in which it was typed."""
        return "".join((*self.parts, self.text))

    @property
    def shown(self) -> str:
        """For a user; parts that may not be one line stand beside each other."""
        return " ... ".join(map(_quoted, filter(None, (*self.parts, self.text))))

    def only_reads(self) -> bool:
        """Whether it is known, and only has commands of which it is known that they only read."""
        return self.known and only_reads(self.text)

    def danger(self) -> Danger | None:
        """What Enter may run now and a user should know of."""
        for shown, line in self._readings():
            if command := DANGEROUS.search(line):
                return Danger(shown, line, command[0])
        return None

    def _readings(self) -> Iterator[tuple[str, str]]:
        """(the line for the user, the line)"""
        parts = [part for part in (*self.parts, self.text) if part]
        shown = self.shown
        yield shown, self.whole
        if len(parts) > 1:
            yield shown, " ".join(parts)
            yield shown, "".join(reversed(parts))
            yield shown, " ".join(reversed(parts))
        unseen = self.recalled or (self.removed and not self.text.strip())
        if unseen or _RERUNS.search(self.text):
            yield _quoted(self.earlier), self.earlier

    def after_action(self, action: Action) -> tuple["Line", list["Line"]]:
        """The line once it is carried out, and the lines that it sends."""
        sent: list[Line] = []
        line = self
        match action:
            case Type(text):
                for piece in filter(None, _CONTROLS.split(text.replace("\r\n", "\n"))):
                    line = line._type(piece, sent)
            case Key(codes, repeat, hold):
                line = line._unsure() if hold else line  # a key that is held repeats itself
                for _ in range(repeat):
                    line = line._press(codes, sent)
            case Click(button="middle"):
                line = _recall(line)
            case Click() | Drag() | Press() | Release():
                line = line.left()
            case Move() | Scroll() | Power() | HidReset():
                line = line._unsure()  # the focus follows the pointer on some desktops
        return line._bounded(), sent

    def amid_action(self, action: Action) -> "Line":
        """The line when the action ended somewhere in the middle."""
        if isinstance(action, Type):
            line = msgspec.structs.replace(self.after_action(action)[0], recalled=True)
            return line._unsure()
        return self._unsure()

    def left(self) -> "Line":
        """The cursor or the focus may be elsewhere now."""
        line = self._unsure()
        if not self.text:
            return line
        parts = (*self.parts, self.text)
        return msgspec.structs.replace(line, before="", after="", parts=parts)

    def erasure(self) -> tuple[Key, ...] | None:
        """What removes all that was typed in any program; None where nothing surely does."""
        if self.parts or self.recalled or self.typed < len(self.text):
            return None
        if not self.text:
            return () if self.known else None
        if not (self.text.isascii() and self.text.isprintable()):
            return None
        whole, rest = divmod(len(self.text), MAX_REPEAT)
        counts = [*[MAX_REPEAT] * whole, *[rest] * bool(rest)]
        return tuple(Key(("Backspace",), count) for count in counts) if whole < 3 else None

    def _unsure(self) -> "Line":
        """More may stand on it."""
        return msgspec.structs.replace(self, known=False, typed=0)

    def _add(self, text: str) -> "Line":
        """Typed at the cursor."""
        typed = self.typed + len(text)
        return msgspec.structs.replace(self, before=self.before + text, typed=typed)

    def left_over(self) -> "Line":
        """For the next run, before which a person may have used the computer. What was sent or
        removed does not count any more: it would make every list that is chosen from by arrows ask.
        """
        line = self.left()
        if line.recalled:
            return line
        return msgspec.structs.replace(line, earlier="", removed=False)

    def _type(self, piece: str, sent: list["Line"]) -> "Line":
        if piece in _SENDS:
            sent.append(self)
            return self._sent()
        if piece in ("\b", "\x7f"):
            return _backspace(self)
        if self.prefix and piece[0] in "e\x05":
            sent.append(self._unsure())
        line = msgspec.structs.replace(self, prefix=piece == "\x18")
        if _CONTROLS.fullmatch(piece):
            return line.left()
        line = line._add(piece)
        if "\t" in piece:
            line = line._unsure()
            if _EVALUATED.search(line.text):
                sent.append(line)
        return line

    def _press(self, codes: tuple[str, ...], sent: list["Line"]) -> "Line":
        keys = frozenset(codes)
        plain = [code for code in codes if not KEYS[code].modifier]
        if not plain:
            return self
        control, other = bool(keys & CONTROL), bool(keys & (ALT | META))
        line = msgspec.structs.replace(self, prefix=control and "KeyX" in keys)
        expands = "Tab" in keys or (control and ("KeyI" in keys or (other and "KeyE" in keys)))
        if (self.prefix and "KeyE" in keys) or (expands and _EVALUATED.search(self.text)):
            sent.append(self._unsure())
        if keys & ENTERS:
            line = line if control or other else line._add(_typed(keys, plain))
            sent.append(line)
            line = line._sent()
            return line._unsure() if control or other or keys & SHIFT else line
        return line._edit(keys, plain, sent)

    def _edit(self, keys: frozenset[str], plain: list[str], sent: list["Line"]) -> "Line":
        control, other = bool(keys & CONTROL), bool(keys & (ALT | META))
        if control and keys & _SENDS_WITH_CONTROL:
            sent.append(self)
            # Elsewhere than in a terminal these send nothing.
            return self._sent() if self.danger() else self.left()
        if control and "KeyD" in keys:  # the end of the input, to programs without an editor
            sent.append(self)
        if keys & _RECALLS or ((control or other) and keys & _RECALLS_WITH_CONTROL):
            return _recall(self)
        typed = _typed(keys, plain)
        if typed and not (control or other):
            return _recall(self)._add(typed)._unsure() if keys & _NUMPAD else self._add(typed)
        edit = _EDITS.get((control, plain[0])) if len(plain) == 1 else None
        if edit is None or other or keys & SHIFT:
            return self.left()
        # The others mean different things to different shells.
        return edit(self) if (control, plain[0]) in _EVERYWHERE else edit(self)._unsure()

    def _sent(self) -> "Line":
        if self.text.endswith(_CONTINUES):
            return msgspec.structs.replace(self, before=self.text[:-1], after="").left()
        danger = self.danger()
        return Line(earlier=danger.line if danger else self.earlier, known=True)

    def _bounded(self) -> "Line":
        typed = self.whole
        if len(self.parts) <= _MOST_PARTS and len(typed) <= MAX_TYPED:
            return self
        if danger := self.danger():
            return Line(earlier=danger.line, recalled=True)
        line = msgspec.structs.replace(self, before=typed[-_KEPT:], after="", parts=())
        return line._unsure()


def _backspace(line: Line) -> Line:
    typed = max(0, line.typed - 1)
    return msgspec.structs.replace(line, before=line.before[:-1], typed=typed)


def _delete(line: Line) -> Line:
    return msgspec.structs.replace(line, after=line.after[1:], typed=0)


def _back(line: Line) -> Line:
    before, char = line.before[:-1], line.before[-1:]
    return msgspec.structs.replace(line, before=before, after=char + line.after, typed=0)


def _forward(line: Line) -> Line:
    if not line.after:  # some shells take what they suggest then
        return _recall(line)
    before, after = line.before + line.after[0], line.after[1:]
    return msgspec.structs.replace(line, before=before, after=after, typed=0)


def _to_start(line: Line) -> Line:
    return msgspec.structs.replace(line, before="", after=line.text, typed=0)


def _to_end(line: Line) -> Line:
    if not line.after:
        return _forward(line)
    return msgspec.structs.replace(line, before=line.text, after="", typed=0)


def _remove_before(line: Line) -> Line:
    if line.after:
        return msgspec.structs.replace(line, before="")
    return _remove(line)


def _remove_after(line: Line) -> Line:
    return msgspec.structs.replace(line, after="") if line.before else _remove(line)


def _remove_word(line: Line) -> Line:
    return msgspec.structs.replace(line, before=re.sub(r"\S+\s*$", "", line.before))


def _remove(line: Line) -> Line:
    danger = line.danger()
    return Line(earlier=danger.line if danger else line.earlier, removed=danger is not None)


def _interrupt(line: Line) -> Line:
    """A terminal begins a line of nothing then; a field may still have what it had."""
    empty = not (line.text or line.parts or line.recalled)
    return msgspec.structs.replace(_remove(line), known=empty)


def _tab(line: Line) -> Line:
    return msgspec.structs.replace(line, before=line.before + "\t")


def _recall(line: Line) -> Line:
    return msgspec.structs.replace(line.left(), recalled=True)


# (with Control, key)
_EDITS: dict[tuple[bool, str], Callable[[Line], Line]] = {
    (False, "Backspace"): _backspace, (True, "KeyH"): _backspace,
    (False, "Delete"): _delete, (True, "KeyD"): _delete,
    (False, "ArrowLeft"): _back, (True, "KeyB"): _back,
    (False, "ArrowRight"): _forward, (True, "KeyF"): _forward,
    (False, "Home"): _to_start, (True, "KeyA"): _to_start,
    (False, "End"): _to_end, (True, "KeyE"): _to_end,
    (True, "KeyU"): _remove_before, (True, "KeyK"): _remove_after, (True, "KeyW"): _remove_word,
    (True, "KeyC"): _interrupt, (False, "Tab"): _tab,
}  # fmt: skip
# Those that no shell takes for something else.
_EVERYWHERE = {
    (False, "Backspace"), (False, "Delete"), (False, "ArrowLeft"), (False, "ArrowRight"),
    (False, "Home"), (False, "End"), (True, "KeyC"),
}  # fmt: skip


def _typed(keys: frozenset[str], plain: list[str]) -> str:
    """What the keys type on a US keyboard; nothing for others."""
    shifted = bool(keys & SHIFT)
    return "".join(_letter(SHIFTED.get(c, 0) if shifted else 0, KEYS[c].keysym) for c in plain)


def _letter(shifted: int, keysym: int) -> str:
    if 0xFFAA <= keysym <= 0xFFB9:  # the numpad's signs, at their ASCII codes
        keysym -= 0xFF80
    keysym = shifted or keysym
    return chr(keysym) if 0x20 <= keysym < 0x7F else ""


def _quoted(text: str) -> str:
    return repr(text.strip()[:200])


class Memory:
    """The line of one computer, for all who operate it, one after the other.

    With a `path` it outlives the process. `redact` takes secrets out of what is written there.
    """

    def __init__(self, path: Path | None = None, redact: Callable[[str], str] = str):
        self._path = path
        self._redact = redact
        self._kept = Line() if path is None else _load(path)
        self.line = self._kept.left_over()

    def keep(self, line: Line) -> None:
        """Raises DriverError when it cannot be written."""
        self.line = line
        # What could not be written is written the next time, though it is the same.
        if self._path is not None and line != self._kept:
            data = self._redact(msgspec.json.encode(line).decode()).encode()
            try:
                write_whole(self._path, data, 0o600)
            except OSError as error:
                raise DriverError(f"{self._path} cannot be written: {error.strerror}.") from error
            self._kept = line


def _load(path: Path) -> Line:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Line)
    except (FileNotFoundError, msgspec.MsgspecError):
        return Line()
    except OSError as error:
        raise DriverError(f"{path} cannot be read: {error.strerror}.") from error
