"""The token sequences that spell DRY's sequence breakers.

Any token that contains a breaker breaks a sequence, and so does one that ends with a breaker's
beginning, where tokens follow that spell the rest.
"""

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate

from pagoda.base.errors import RequestError
from pagoda.text.tokenizer import Tokenizer

_PARAM = "dry_sequence_breakers"
# Each is searched for in the whole vocabulary; llama.cpp cuts them at this length.
MAX_BREAKERS, MAX_BYTES = 32, 40
_MAX_TAIL = 20  # llama.cpp's


@lru_cache(maxsize=16)  # a client's requests have the same, and most the usual ones
def breaker_ids(texts: tuple[str, ...], tokenizer: Tokenizer) -> list[list[int]]:
    """Sequences of token ids, the first of which are different ones for different `texts`.

    Raises RequestError for too many texts, and for long and empty ones.
    """
    if len(texts) > MAX_BREAKERS:
        raise RequestError(f"{_PARAM} may be {MAX_BREAKERS} at most.", _PARAM)
    found: dict[tuple[int, ...], None] = {}
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        size = len(text.encode())
        if not 0 < size <= MAX_BYTES:
            raise RequestError(
                f"{_PARAM} has a text of {size} bytes; each may have 1 to {MAX_BYTES}.", _PARAM
            )
        # Also where its tokens end inside characters.
        found[tuple(ids[: 1 + _MAX_TAIL])] = None
        for head, tail in _overlapping(text, tokenizer):
            found[head, *tail[:_MAX_TAIL]] = None
    return [list(ids) for ids in found]


def _overlapping(text: str, tokenizer: Tokenizer) -> Iterator[tuple[int, list[int]]]:
    """Tokens that contain the text, or end with a part of it, each with the ids of the rest."""
    tokens = _spelled(tokenizer)
    containing = {token for token, _ in tokens.find(text.encode())}
    for token in containing:
        yield token, []
    for length in range(1, len(text)):
        rest: list[int] | None = None
        for token, at_end in tokens.find(text[:length].encode()):
            if at_end and token not in containing:
                if rest is None:
                    rest = tokenizer.encode(
                        text[length:], add_special_tokens=False, parse_special=False
                    )
                yield token, rest


class _Spelled:
    """The bytes of all tokens, one after the other: a search takes a millisecond or two."""

    def __init__(self, tokenizer: Tokenizer):
        words = [tokenizer.token_bytes(index) for index in range(tokenizer.vocab_size)]
        self._all = b"".join(words)
        self._ends = list(accumulate(map(len, words)))

    def find(self, part: bytes) -> Iterator[tuple[int, bool]]:
        """Tokens that contain `part`, and whether they end with what was found."""
        place = self._all.find(part)
        while place >= 0:
            token = bisect_right(self._ends, place)
            end = place + len(part)
            if end <= self._ends[token]:
                yield token, end == self._ends[token]
            place = self._all.find(part, place + 1)


@lru_cache(maxsize=4)
def _spelled(tokenizer: Tokenizer) -> _Spelled:
    return _Spelled(tokenizer)
