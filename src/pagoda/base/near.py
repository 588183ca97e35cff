"""Which known word somebody meant who mistyped one."""

import difflib
import re
from collections.abc import Collection, Iterable

# One slip in so many letters: `bogus` is not `verbose`, and `generate` is not `serve`.
_LETTERS_PER_SLIP = 3


def nearest(word: str, *groups: Iterable[str]) -> str | None:
    """The known word that `word` is a misspelling or the first half of, or that has its parts
    (`max_len` is `max_model_len`); or None.

    An earlier group wins as soon as it has one that is near, among words that have the parts the
    first. Dashes in front do not count.
    """
    typed = word.lstrip("-")
    limit = len(typed) // _LETTERS_PER_SLIP
    for group in groups:
        known = list(dict.fromkeys(group))
        by_slips = [(edit_distance(typed, name.lstrip("-")), name) for name in known]
        close = [entry for entry in by_slips if entry[0] <= limit]
        if limit and close:
            return min(close)[1]
        begun = [name for name in known if _begins(typed, name.lstrip("-"))]
        if begun:
            return min(begun, key=len)
        if whole := next((name for name in known if _has_parts(typed, name.lstrip("-"))), None):
            return whole
    return None


def nearest_of(word: str, known: Collection[str]) -> str:
    """A phrase for error messages: the nearest known name, and all known ones."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.3)
    names = "known: " + ", ".join(sorted(known))
    return f"the nearest known is {close[0]!r} ({names})" if close else names


def edit_distance(first: str, second: str) -> int:
    """Letters to insert, delete, replace, or swap with their neighbour (each counts one).

    The optimal string alignment distance: no letter is edited twice.
    """
    before: list[int] = []
    above = list(range(len(second) + 1))
    for i, a in enumerate(first, start=1):
        row = [i]
        for j, b in enumerate(second, start=1):
            best = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a != b))
            if i > 1 and j > 1 and a == second[j - 2] and b == first[i - 2]:
                best = min(best, before[j - 2] + 1)
            row.append(best)
        before, above = above, row
    return above[-1]


def _begins(typed: str, name: str) -> bool:
    return name.startswith(typed) and 2 * len(typed) >= len(name)


def _has_parts(typed: str, name: str) -> bool:
    """Whether two words or more are all in the name, in their order."""
    parts, left = re.split("[-_]", typed), iter(re.split("[-_]", name))
    return len(parts) > 1 and all(part in left for part in parts)
