"""Which log-probabilities belong to which piece of a reply's text, where thought, calls and markup
stand between."""

from collections import deque
from collections.abc import Iterator

from pagoda.core.messages import TokenLogprobs
from pagoda.engine.outputs import OutputDelta
from pagoda.text.parsers.base import Delta, OutputParser


class TextLogprobs:
    """Of one reply, read by `parser`. A token that is text in part counts, and belongs to the
    first piece that it reaches into."""

    def __init__(self, parser: OutputParser):
        self._parser = parser
        self._tokens: deque[tuple[int, int, TokenLogprobs]] = deque()
        """Those whose text is still to come: where each begins and ends in the reply."""
        self._end = 0
        """Of the last token that came."""
        self._given = 0
        """Where the text that was taken ends in the reply."""
        self._span = 0
        """Index of the parser's span that this lies in."""

    def of(self, output: OutputDelta, deltas: list[Delta]) -> list[list[TokenLogprobs]]:
        """For each delta that became certain with this output those of its text."""
        for entry, end in zip(output.logprobs or [], output.text_ends, strict=False):
            # Bytes that only begin a character belong to it: to what follows.
            self._tokens.append((self._end, max(end, self._end + 1), entry))
            self._end = end
        return [self._take(len(delta.text)) if delta.kind == "text" else [] for delta in deltas]

    def _take(self, length: int) -> list[TokenLogprobs]:
        """Of the next `length` characters of text."""
        taken = []
        for start, end in self._places(length):
            while self._tokens and self._tokens[0][0] < end:
                _, behind, entry = self._tokens.popleft()
                if behind > start:
                    taken.append(entry)
        return taken

    def _places(self, length: int) -> Iterator[tuple[int, int]]:
        """Where they stand in the reply."""
        while length:
            start, end = self._parser.text_spans[self._span]
            start = max(start, self._given)
            if start == end:  # all of it is taken; the last span may have grown before
                self._span += 1
                continue
            self._given = min(end, start + length)
            length -= self._given - start
            yield start, self._given
