"""Which keys of an X server's keyboard produce what, and lending keys to signs that it lacks.

Keysyms and the layout of the core keyboard mapping are from the X protocol, section 5: columns 0
and 1 of a key are its first group without and with Shift, 2 and 3 its second group.
"""

import time
from collections.abc import Sequence

from Xlib import X, display

from pagoda_agent.base.errors import ActionError, DriverError, UntypeableError
from pagoda_agent.input.keys import KEYS, keysym_of

_SHIFT = KEYS["ShiftLeft"].keysym
# The right Alt key is a third Shift on most European layouts.
_STAND_INS = {KEYS["AltRight"].keysym: 0xFE03}
# Programs translate a key when they get to its event, with the mapping that they know then. Before
# a key is used that was lent to a sign, they have so long to learn of it (Tk loses keys that come
# together with the news), and after it was used it keeps its meaning at least so long.
LEARNING_SECONDS = 0.2
_LENT_SECONDS = 0.1


class Keyboard:
    """Used by one thread. Raises ActionError, DriverError and what python-xlib raises."""

    def __init__(self, connection: display.Display):
        self._display = connection
        self._lent: dict[int, int] = {}  # keysym: keycode, the longest unused first
        self._used: dict[int, float] = {}  # keycode: when it last typed for its borrower
        self._read()

    def keycode(self, code: str) -> int:
        """The key that has the meaning of `code` (see `keys.KEYS`); raises ActionError."""
        self._refresh()
        key = KEYS[code]
        for keysym in (key.keysym, _STAND_INS.get(key.keysym, 0)):
            for group in (0, 1):
                if place := self._places.get((group, keysym)):
                    return place[0]
        new = key.keysym not in self._lent
        if key.modifier or not (keycode := self._borrow(key.keysym)):
            raise ActionError(f"This display's keyboard has no key {code!r}.")
        time.sleep(LEARNING_SECONDS if new else 0)
        return keycode

    def check(self, text: str) -> None:
        """Raises UntypeableError for characters that no key can produce."""
        bad = [char for char in text if not keysym_of(char) or 0xD800 <= ord(char) < 0xE000]
        if not bad and not self._spare:
            self._refresh()
            bad = [char for char in text if (0, keysym_of(char)) not in self._places]
        if bad:
            raise UntypeableError(bad, "x11")

    def prepare(self, text: str) -> tuple[int, bool]:
        """Lend keys to the signs of a checked text that have none.

        Returns how many characters can be typed before keys must change hands again, and whether
        programs have to learn of new keys first.
        """
        self._refresh()
        group, _ = self._state()
        needed: set[int] = set()
        new = False
        for position, keysym in enumerate(map(keysym_of, text)):
            if (group, keysym) in self._places or keysym in needed:
                continue
            if len(needed) == len(self._spare):
                return position, new
            needed.add(keysym)
            new |= keysym not in self._lent
            self._borrow(keysym)
        return len(text), new

    def type(self, text: str) -> None:
        """Press and release the keys of a text that was prepared; none stays down."""
        self._refresh()
        group, caps = self._state()
        shift_key = self._places[0, _SHIFT][0]
        for char in text:
            keysym = keysym_of(char)
            keycode, shifted = self._places.get((group, keysym)) or (self._borrow(keysym), False)
            keys = [keycode]
            if shifted != (caps and char.lower() != char.upper()):
                keys.insert(0, shift_key)
            for key in keys:
                self._fake(X.KeyPress, key)
            for key in reversed(keys):
                self._fake(X.KeyRelease, key)
        self._display.sync()

    def restore(self) -> None:
        """Take back every key that was lent."""
        for keycode in self._lent.values():
            self._let_be_read(keycode)
            self._map(keycode, 0)
        self._lent.clear()
        self._display.sync()

    def _state(self) -> tuple[int, bool]:
        """The group of the layout that is on, and whether Caps Lock is."""
        mask = self._display.screen().root.query_pointer().mask
        return mask >> 13 & 3, bool(mask & X.LockMask)

    def _fake(self, event: int, keycode: int) -> None:
        self._display.xtest_fake_input(event, keycode)

    def _read(self) -> None:
        first = self._display.display.info.min_keycode
        count = self._display.display.info.max_keycode - first + 1
        rows: Sequence[Sequence[int]] = self._display.get_keyboard_mapping(first, count)
        keys = dict(enumerate(rows, start=first))
        # A new layout takes lent keys back.
        self._lent = {
            keysym: keycode for keysym, keycode in self._lent.items() if keys[keycode][0] == keysym
        }
        lent = set(self._lent.values())
        self._spare = [code for code, row in keys.items() if not any(row)] + list(lent)
        # (group, keysym): (keycode, whether with Shift)
        self._places: dict[tuple[int, int], tuple[int, bool]] = {}
        for level in (0, 1):
            for group in (0, 1, 2, 3):
                for keycode, row in keys.items():
                    own = row[2 * group : 2 * group + 2] if group < 2 else ()
                    keysym = (own if any(own) else row)[level]
                    if keysym and keycode not in lent:
                        self._places.setdefault((group, keysym), (keycode, bool(level)))
        if (0, _SHIFT) not in self._places:
            raise DriverError(
                "The display has no keyboard layout; set one, as with `setxkbmap us`."
            )

    def _refresh(self) -> None:
        """Read the mapping again where somebody changed it."""
        changed = False
        for _ in range(self._display.pending_events()):
            changed |= self._display.next_event().type == X.MappingNotify
        if changed:
            self._read()

    def _borrow(self, keysym: int) -> int:
        """A spare key that produces the keysym now; 0 where the keyboard has none."""
        keycode = self._lent.pop(keysym, 0)
        if not keycode:
            free = set(self._spare) - set(self._lent.values())
            if free:
                keycode = min(free)
            elif self._lent:
                keycode = self._lent.pop(next(iter(self._lent)))
                self._let_be_read(keycode)
            else:
                return 0
            self._map(keycode, keysym)
        self._lent[keysym] = keycode
        self._used[keycode] = time.monotonic()
        return keycode

    def _let_be_read(self, keycode: int) -> None:
        time.sleep(max(0.0, self._used[keycode] + _LENT_SECONDS - time.monotonic()))

    def _map(self, keycode: int, keysym: int) -> None:
        # The same in both groups, with and without Shift.
        self._display.change_keyboard_mapping(keycode, [(keysym,) * 4])
        self._display.sync()
