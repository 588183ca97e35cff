"""Sizes of steps that are captured on a GPU."""

from collections.abc import Sequence
from typing import NamedTuple

_USUAL_REQS = 32


class CapturedSize(NamedTuple):
    """A step that is captured; smaller ones are padded to it."""

    requests: int
    tokens: int
    """One of each request, and guesses of some."""
    prompts: bool = False
    """With prompts, of each of which the last token alone has logits."""

    @property
    def samples(self) -> int:
        """Rows of logits, at most."""
        return self.requests if self.prompts else self.tokens


PADDING = 0.25
"""Steps with prompts of more than 64 tokens are padded by no larger share."""
_FEW_REQS = 16
"""Requests: with no more, few rows of logits are computed for nobody."""


def mixed_sizes(max_num_reqs: int, most_tokens: int) -> tuple[CapturedSize, ...]:
    """Steps with prompts of up to so many tokens, those of fewest first."""
    counts = sorted({min(_FEW_REQS, max_num_reqs), max_num_reqs})
    powers = range(4, most_tokens.bit_length())
    steps = [16, 32, 48, *(part << power for power in powers for part in (4, 5, 6, 7))]
    numbers = [*(number for number in steps if number < most_tokens), most_tokens]
    return tuple(CapturedSize(count, number, True) for number in numbers for count in counts)


def captured_sizes(
    max_num_reqs: int, most_guesses: int = 0, most_in_step: int = 0
) -> tuple[CapturedSize, ...]:
    """The decode steps that are captured: without guesses, then with those of up to
    `most_guesses` tokens a request and `most_in_step` in all. With more requests than that, hardly
    one has a guess."""
    counts = _spread(max_num_reqs)
    sizes = [CapturedSize(count, count) for count in counts]
    for count in counts:
        if count <= most_in_step:
            tokens = _spread(count + min(count * most_guesses, most_in_step))
            sizes += [CapturedSize(count, number) for number in tokens if number > count]
    return tuple(sizes)


def usual_sizes(sizes: Sequence[CapturedSize]) -> tuple[CapturedSize, ...]:
    """Those that are captured before an engine is ready, the smallest first: one token of each of
    up to `_USUAL_REQS` requests, and the guesses of one request."""
    usual = [
        size
        for size in sizes
        if not size.prompts
        and size.requests <= (_USUAL_REQS if size.tokens == size.requests else 1)
    ]
    return tuple(sorted(usual, key=lambda size: (size.tokens, size.requests)))


def _spread(most: int) -> list[int]:
    """Numbers up to `most`, each twice the one before it: from 16 on with one between, so that
    padding adds less than a half."""
    doubled = [1 << power for power in range(most.bit_length())]
    between = [3 * number // 2 for number in doubled if number >= 16]
    return [*sorted(number for number in {*doubled, *between} if number < most), most]
