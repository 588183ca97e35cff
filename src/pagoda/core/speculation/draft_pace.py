"""What it costs the runner to guess, and how many guesses are worth it."""

from pagoda.core.speculation.chances import Chances

# What was measured fades: about so many steps count.
_MEMORY = 8.0


class DraftPace:
    """Learns the time of a guess from steps behind which tokens were guessed."""

    def __init__(self) -> None:
        self._seconds: float | None = None
        """For each token further on, of all requests; None: nothing was measured."""

    def observe(self, num_drafts: int, seconds: float) -> None:
        """So long took guessing so many tokens for each request of a step without prompts."""
        each = seconds / num_drafts
        known = each if self._seconds is None else self._seconds
        self._seconds = known + (each - known) / _MEMORY

    def best(
        self,
        chances: Chances,
        num_streams: int,
        seconds: float,
        row_seconds: float,
        most: int,
    ) -> int:
        """How many guesses for each of `num_streams` requests give the most tokens a second, at
        most `most`; all of them while nothing was measured.

        Without any the step takes `seconds`; to verify one takes `row_seconds`. The evidence of a
        guess is its place.
        """
        if self._seconds is None:
            return most
        each = self._seconds + row_seconds * num_streams
        tokens, chance, found = 1.0, 1.0, 0
        best = tokens / seconds
        for count in range(1, most + 1):
            chance *= chances.of(min(count, chances.num_kinds) - 1)
            tokens += chance
            rate = tokens / (seconds + count * each)
            if rate > best:
                best, found = rate, count
        return found
