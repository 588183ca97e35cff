"""Which tokens spell DRY's sequence breakers."""

import pytest

from pagoda.base.errors import RequestError
from pagoda.text.breakers import breaker_ids

WORDS = ["a", "b", "c", "ab", "xa", "abc", "cab", "é"]


class Words:
    """A tokenizer of WORDS, by the longest that fits, then of single bytes."""

    vocab_size = len(WORDS) + 256

    def token_bytes(self, index: int) -> bytes:
        return WORDS[index].encode() if index < len(WORDS) else bytes([index - len(WORDS)])

    def encode(self, text: str, **_) -> list[int]:
        ids, data = [], text.encode()
        while data:
            fits = [i for i in range(self.vocab_size) if data.startswith(self.token_bytes(i))]
            ids.append(max(fits, key=lambda i: (len(self.token_bytes(i)), -i)))
            data = data[len(self.token_bytes(ids[-1])) :]
        return ids


def spelled(*texts: str) -> set[tuple[str, ...]]:
    words = Words()
    found = breaker_ids(texts, words)
    return {
        tuple(words.token_bytes(index).decode("latin-1") for index in ids)
        for ids in found
        if all(index < len(WORDS) for index in ids)
    }


def test_tokens_with_a_breaker_inside() -> None:
    assert spelled("a") == {("a",), ("ab",), ("xa",), ("abc",), ("cab",)}


def test_tokens_that_a_breaker_begins_in() -> None:
    assert spelled("ab") == {("ab",), ("abc",), ("cab",), ("a", "b"), ("xa", "b")}
    assert spelled("abb") == {("ab", "b"), ("cab", "b"), ("a", "b", "b"), ("xa", "b", "b")}
    assert spelled("b", "cab") >= {("b",), ("cab",), ("c", "ab")}


def test_bad_breakers() -> None:
    for texts in (("",), ("é" * 21,), ("a",) * 33):
        with pytest.raises(RequestError, match="dry_sequence_breakers"):
            breaker_ids(texts, Words())
