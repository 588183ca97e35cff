"""How often guesses come true, and how many of them a step should verify."""

from collections.abc import Sequence

# What was seen fades: about so many cases count, of all requests and of one.
_MEMORY, _OWN_MEMORY = 128.0, 16.0
_FADING = 1.0 - 1.0 / _OWN_MEMORY
# An assumed chance, and what is known of all requests, count as so many cases; as many does what
# they tell beside what is known of the token in front.
_ASSUMED, _KNOWN = 8.0, 8.0
_Case = tuple[float, float]
"""How many came true, and how many were seen."""
_UNSEEN: _Case = (0.0, 0.0)


class Chances:
    """The share of tokens that came true, by evidence."""

    def __init__(self, first: Sequence[float]):
        """`first` holds while nothing was seen."""
        self._right = [_ASSUMED * chance for chance in first]
        self._seen = [_ASSUMED] * len(self._right)
        self.num_kinds = len(self._right)
        """How many kinds of evidence there are."""

    def observe(self, evidence: int, came_true: bool) -> None:
        self._right[evidence] += came_true
        self._seen[evidence] += 1.0
        if self._seen[evidence] > _MEMORY:
            self._right[evidence] *= 0.5
            self._seen[evidence] *= 0.5

    def of(self, evidence: int) -> float:
        return self._right[evidence] / self._seen[evidence]


class OwnChances:
    """Those of one request, which differ little from all others' until it was seen often.

    What comes behind some tokens is never sure, such as a name behind `def`: so a chance depends on
    the token in front, too.
    """

    def __init__(self, common: Chances):
        self._common = common
        self._cases: dict[int, _Case] = {}
        self._behind: dict[int, _Case] = {}
        """By the token in front."""

    def observe(self, evidence: int, before: int, came_true: bool) -> None:
        """What came of a token that was guessed behind the token `before`."""
        self._common.observe(evidence, came_true)
        for cases, key in ((self._cases, evidence), (self._behind, before)):
            right, seen = cases.get(key, _UNSEEN)
            cases[key] = right * _FADING + came_true, seen * _FADING + 1.0

    def of_all(self, evidence: Sequence[int], before: int, token_ids: Sequence[int]) -> list[float]:
        """The chance that each token, and all in front of it, come true behind `before`."""
        chances, chance = [], 1.0
        for kind, token in zip(evidence, token_ids, strict=True):
            right, seen = self._cases.get(kind, _UNSEEN)
            own = (right + _ASSUMED * self._common.of(kind)) / (seen + _ASSUMED)
            right, seen = self._behind.get(before, _UNSEEN)
            chance *= (right + _KNOWN * own) / (seen + _KNOWN)
            chances.append(chance)
            before = token
        return chances


def worthwhile(
    chances: Sequence[Sequence[float]],
    num_streams: int,
    seconds: float,
    row_seconds: float,
    most: int,
) -> list[int]:
    """How many guesses of each request make the most tokens per second of the next step.

    `chances[i]` falls: the chance that request i's guesses up to each come true. Without guesses
    the step takes `seconds` and gives `num_streams` tokens; each guess adds `row_seconds` and its
    chance. At most `most` are taken in all. One is worth it while its chance for its time is more
    than what the step gives for its own, so the likeliest go first.
    """
    counts = [0] * len(chances)
    tokens, left = float(num_streams), most
    ranked = sorted(
        ((-chance, place, i) for i, own in enumerate(chances) for place, chance in enumerate(own))
    )
    for negative, _, i in ranked:
        if not left or -negative * seconds <= tokens * row_seconds:
            break
        tokens -= negative
        seconds += row_seconds
        counts[i] += 1
        left -= 1
    return counts
