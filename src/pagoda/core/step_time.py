"""What a step takes, learned from the steps that were measured. Reads no clock itself."""

import math
from typing import NamedTuple

import numpy as np

from pagoda.core.batch import Ints
from pagoda.core.plan import StepPlan

# A class remembers about so many steps; what is older fades.
_MEMORY = 16
# Once a class has so many steps, one of more than so many times its speed was no whole step.
_SURE, _FASTEST = 8, 4.0
# Weight that a class loses with each step of others. What the classes of today leave open is
# decided by the old ones, so that a weight never fades away entirely.
_FADE, _LEAST_WEIGHT = 0.98, 1e-3
# Beside prompts without end, a step in so many leaves them out to see what streams alone take.
_DECODE_PERIOD = 64
# A class that was not seen for so many steps counts its next step at most this much: its pace may
# have changed.
_LONG_AGO, _FRESH_SHARE = 256, 0.25
# Classes that are kept: a long prompt beside streams passes through about a dozen.
_MOST_CLASSES = 32
# Shares of the squares that are rounding.
_TIE = 1e-9


class StepSize(NamedTuple):
    tokens: float = 0.0
    pairs: float = 0.0
    """Pairs of a query with a key that it attends to: a chunk's tokens times their mean context."""

    def plus(self, start: float, num_tokens: float) -> "StepSize":
        """With `num_tokens` more of a request that has computed `start` tokens."""
        pairs = num_tokens * (start + (num_tokens + 1) / 2)
        return StepSize(self.tokens + num_tokens, self.pairs + pairs)


def only_decodes(plan: StepPlan) -> bool:
    """Whether each request gets its next token and none reads a prompt."""
    return plan.num_tokens == len(plan.rows) + sum(map(len, plan.drafts.values()))


def size_of(plan: StepPlan) -> StepSize:
    tokens = plan.num_tokens
    if tokens == len(plan.rows):
        return size_of_streams(plan.starts)
    pairs = plan.lens * (plan.starts + (plan.lens + 1) / 2)
    return StepSize(tokens, float(pairs.sum()))


def size_of_streams(computed: Ints) -> StepSize:
    """The size of a step with a token of each request that has computed so many."""
    return StepSize(len(computed), float(np.add.reduce(computed)) + len(computed))


class StepCost(NamedTuple):
    """Seconds, all at least 0."""

    per_token: float
    base: float = 0.0
    per_pair: float = 0.0

    def seconds(self, size: StepSize) -> float:
        return self.base + self.per_token * size.tokens + self.per_pair * size.pairs

    def most_tokens(self, size: StepSize, start: int, seconds: float) -> float:
        """How many tokens of a request, behind the `start` it has computed, fit into a step of
        `size` until that takes `seconds`; may be infinite, and is 0 where nothing fits."""
        left = seconds - self.seconds(size)
        if left <= 0:
            return 0.0
        # left = square * n^2 + slope * n
        square = self.per_pair / 2
        slope = self.per_token + self.per_pair * (start + 0.5)
        if slope <= 0:
            return math.inf
        return 2 * left / (slope + math.sqrt(slope * slope + 4 * square * left))


class StepTimes:
    """Learns `StepCost` from measured steps.

    Steps are kept in classes of like size (powers of two, in tokens and in context), each with
    its mean size and its mean speed. So a thousand steps of one kind do not wear out what is
    known of the others. Means of speed (1 / seconds) hardly notice a step that was descheduled:
    one of ten times the length counts as one of 1.06 times.

    Steps that only decode have a cost of their own: runners prepare and capture those, and the
    same number of tokens may cost half of what it does beside a prompt.
    """

    def __init__(self) -> None:
        self._classes: dict[tuple[bool, int, int], _Class] = {}
        self._num_steps = 0
        self._last_decode = 0

    def observe(self, size: StepSize, seconds: float, decodes: bool = False) -> None:
        if size.tokens < 1 or seconds <= 0:
            return
        self._num_steps += 1
        if decodes:
            self._last_decode = self._num_steps
        context = round(size.pairs / size.tokens)
        key = (decodes, round(size.tokens).bit_length(), context.bit_length())
        known = self._classes.pop(key, None)
        if known is None:
            known = _Class(size, 1 / seconds)
            if len(self._classes) >= _MOST_CLASSES:
                del self._classes[next(iter(self._classes))]  # the one not seen for longest
        known.add(size, 1 / seconds, self._num_steps)
        self._classes[key] = known

    @property
    def shortest(self) -> float:
        """Seconds of the shortest class of steps: no step costs more besides its tokens. 0 without
        any step."""
        return min((1 / known.speed for known in self._classes.values()), default=0.0)

    def wants_decode(self) -> bool:
        """Whether the next step should only decode, since none has for long. Asking counts."""
        wants = self._num_steps - self._last_decode >= _DECODE_PERIOD
        if wants:
            self._last_decode = self._num_steps
        return wants

    def cost(self, decodes: bool = False) -> StepCost | None:
        """The cost, of steps that only decode or of the others, that fits best, errors counted
        relative to each time. Steps of the other kind decide what those of this one leave open.
        None without any step."""
        if not self._classes:
            return None
        rows = []
        for key, known in self._classes.items():
            age = self._num_steps - known.last_step
            weight = max(_LEAST_WEIGHT, _FADE**age) * min(known.count, _MEMORY)
            if key[0] != decodes:
                weight *= _LEAST_WEIGHT
            # Divided by its seconds, every class has the target 1.
            speed = known.speed
            rows.append((weight, (known.tokens * speed, speed, known.pairs * speed)))
        return StepCost(*_least_squares(rows))


class _Class:
    """Running means over steps of like size."""

    __slots__ = ("count", "last_step", "pairs", "speed", "tokens")

    def __init__(self, size: StepSize, speed: float):
        self.count = 0
        self.last_step = 0
        self.tokens, self.pairs = size
        self.speed = speed

    def add(self, size: StepSize, speed: float, step: int) -> None:
        self.count += 1
        age = step - self.last_step
        self.last_step = step
        share = max(1 / min(self.count, _MEMORY), min(_FRESH_SHARE, age / _LONG_AGO))
        self.tokens += share * (size.tokens - self.tokens)
        self.pairs += share * (size.pairs - self.pairs)
        if self.count > _SURE:
            speed = min(speed, _FASTEST * self.speed)
        self.speed += share * (speed - self.speed)


def _least_squares(rows: list[tuple[float, tuple[float, float, float]]]) -> list[float]:
    """x >= 0 with the least weighted squares of `row . x - 1`, for (weight, row) in `rows`.

    Exact: of three unknowns, the best set of those that are not 0 is found by trying all seven.
    Where several fit as well, the first does: each token is taken to cost the same.
    """
    # Written out, for each step with a prompt asks twice.
    total = t0 = t1 = t2 = g00 = g01 = g02 = g11 = g12 = g22 = 0.0
    for weight, (a, b, c) in rows:
        wa, wb, wc = weight * a, weight * b, weight * c
        total += weight
        t0 += wa
        t1 += wb
        t2 += wc
        g00 += wa * a
        g01 += wa * b
        g02 += wa * c
        g11 += wb * b
        g12 += wb * c
        g22 += wc * c
    target = t0, t1, t2
    whole = _solve_three((g00, g01, g02, g11, g12, g22), target)
    if whole is not None and min(whole) >= 0:
        return list(whole)  # No subset fits better than all.
    best, most = [0.0] * 3, 0.0
    for i, j, found in (
        (0, 1, _solve_two(g00, g01, g01, g11, t0, t1, 0.0, _TIE * g11)),
        (0, 2, _solve_two(g00, g02, g02, g22, t0, t2, 0.0, _TIE * g22)),
        (1, 2, _solve_two(g11, g12, g12, g22, t1, t2, 0.0, _TIE * g22)),
        (0, 1, (t0 / g00, 0.0) if g00 > 0 else None),
        (1, 2, (t1 / g11, 0.0) if g11 > 0 else None),
        (2, 0, (t2 / g22, 0.0) if g22 > 0 else None),
    ):
        if found is None or min(found) < 0:
            continue
        # At a solution the squares are `total` less this.
        explained = found[0] * target[i] + found[1] * target[j]
        if explained > most + _TIE * total:
            best, most = [0.0] * 3, explained
            best[i], best[j] = found
    return best


def _solve_three(
    gram: tuple[float, ...], target: tuple[float, float, float]
) -> tuple[float, float, float] | None:
    """Solve by Gauss; `gram` is symmetric, its upper half by rows. None where the steps do not tell
    them apart."""
    g00, g01, g02, g11, g12, g22 = gram
    t0, t1, t2 = target
    if g00 <= 0:
        return None
    first, second = g01 / g00, g02 / g00
    rest = _solve_two(
        g11 - first * g01, g12 - first * g02, g12 - second * g01, g22 - second * g02,
        t1 - first * t0, t2 - second * t0, _TIE * g11, _TIE * g22,
    )  # fmt: skip
    if rest is None:
        return None
    x1, x2 = rest
    return (t0 - (g01 * x1 + g02 * x2)) / g00, x1, x2


def _solve_two(
    a: float, b: float, c: float, d: float, s: float, t: float, least_a: float, least_d: float
) -> tuple[float, float] | None:
    """x and y of a x + b y = s and c x + d y = t. None where a pivot is no larger than its least:
    of what is left of a column that others explain, rounding is the larger part."""
    if a <= least_a:
        return None
    factor = c / a
    pivot = d - factor * b
    if pivot <= least_d:
        return None
    y = (t - factor * s) / pivot
    return (s - b * y) / a, y
