"""Matchers that go back and forth stand where one that went straight on does."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.base.errors import RequestError
from pagoda.core import grammar
from pagoda.core.grammar import Grammars, TokenMatcher, Vocabulary
from tests.unit.grammar.bytes_vocabulary import EOS, ByteGrammars

BYTES = ByteGrammars()
GRAMMAR = 'start: item ("," item)*\nitem: "a" | "b" item | %json {"type": "integer"}\n'
SENTENCES = ["a", "ba,bba", "12,a,b-7", "bbbbbbb3,a,a,a,a", "7,7,7,b7"]


@given(st.lists(st.tuples(st.sampled_from(SENTENCES), st.integers(0, 20)), max_size=12))
def test_any_way_leads_to_the_same_place(stops):
    wandering = BYTES.matcher(GRAMMAR)
    for sentence, length in stops:
        output = BYTES.encode(sentence[:length])
        straight = BYTES.matcher(GRAMMAR)
        assert wandering.follow(output)
        assert straight.follow(output)
        assert BYTES.allowed(wandering) == BYTES.allowed(straight)


def test_a_draft_that_breaks_the_grammar_can_be_taken_back():
    matcher = BYTES.matcher(GRAMMAR)
    assert matcher.follow(BYTES.encode("ba"))
    assert not matcher.follow(BYTES.encode("ba?x"))
    assert matcher.follow(BYTES.encode("ba,"))
    assert matcher.error() is None
    assert ord("b") in BYTES.allowed(matcher)
    assert EOS not in BYTES.allowed(matcher)


def test_long_outputs_are_followed():
    matcher = BYTES.matcher('start: "[" /(.|\\n)*/ "]"\n')
    text = "[" + "x" * 1000
    for length in (1, 60, 70, 500, 1001):
        assert matcher.follow(BYTES.encode(text[:length]))
    assert ord("]") in BYTES.allowed(matcher)


def test_an_output_that_has_ended_stays_so():
    matcher = BYTES.matcher(GRAMMAR)
    ended = np.array([ord("a"), EOS, EOS, EOS], np.int32)
    assert matcher.follow(ended) and BYTES.allowed(matcher) == {EOS}
    assert matcher.follow(ended[:1])
    assert BYTES.allowed(matcher) == {EOS, ord(",")}


def test_a_grammar_may_take_only_so_long():
    """Every split of the text into parts is a parse of it: work grows with each token."""
    matcher = BYTES.matcher('start: x\nx: "a" | x x | x x x\n')
    for length in range(4000):
        assert matcher.follow(BYTES.encode("a" * length))
        BYTES.allowed(matcher)
        if matcher.error() is not None:
            break
    assert "tokens" in (matcher.error() or "")


def test_waiting_for_the_processor_is_not_counted(monkeypatch):
    """A busy machine lets a thread stand still inside of any call."""
    monkeypatch.setattr(grammar, "_SECONDS", 0.05)
    monkeypatch.setattr(grammar, "_SECONDS_PER_TOKEN", 0.0)

    class Interrupted:
        def try_consume_tokens(self, tokens: list[int]) -> int:
            time.sleep(0.06)
            return len(tokens)

        def unsafe_compute_mask_ptr(self, address: int, size: int) -> None:
            time.sleep(0.06)

        def is_error(self) -> bool:
            return False

    matcher = TokenMatcher(Interrupted(), [EOS])
    assert matcher.follow(BYTES.encode("a"))
    assert matcher.error() is None
    matcher.fill(np.zeros(BYTES.grammars.mask_words, np.int32))
    assert matcher.error() is None


def test_logits_beyond_the_tokens_are_never_allowed():
    vocabulary = Vocabulary([b"a", b"b", b"<eos>"], [2], [2], lambda text: [])
    grammars = Grammars(lambda: vocabulary, 70)
    mask = np.zeros(grammars.mask_words, np.int32)
    grammars.fill(mask, grammars.matcher("start: /.*/\n"))
    assert mask.tolist() == [0b111, 0, 0]


def test_a_wrong_grammar_says_so():
    future = BYTES.grammars.compile("start: missing\n")
    with pytest.raises(RequestError, match="missing"):
        future.result(timeout=30)
    with pytest.raises(RequestError, match="missing"):
        BYTES.matcher("start: missing\n")


def test_compiled_grammars_are_kept_and_others_replaced():
    grammars = ByteGrammars().grammars
    for number in range(70):
        grammars.compile(f'start: "{number}"\n').result(timeout=30)
    assert grammars.compile('start: "69"\n').done()
    assert grammars.matcher('start: "0"\n') is not None  # dropped, and compiled again
