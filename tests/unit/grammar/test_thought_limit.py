"""A budget of thought: behind so many tokens the model must answer."""

import numpy as np
import pytest

from pagoda.core.grammar import Grammars, TokenMatcher, Vocabulary
from pagoda.text.grammar.body import json_body
from pagoda.text.grammar.calls import CallSpec
from pagoda.text.grammar.reply import CallRule, ThoughtLimit, reply_grammar
from pagoda.text.parsers.select import FAMILIES

EOS, OPEN, CLOSE = 256, 257, 258
# Tokens of their own, and no special ones: so are Qwen's.
TOKENS = [*(bytes([byte]) for byte in range(256)), b"<eos>", b"<think>", b"</think>"]
VOCABULARY = Vocabulary(TOKENS, [EOS], [EOS], lambda text: list(text.encode()))
GRAMMARS = Grammars(lambda: VOCABULARY, len(TOKENS))
BUDGET = 6
FORM = FAMILIES.get("hermes").family("hermes").form
OPENED, PLAIN = "<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n"


def grammar_for(prompt: str, **options) -> str:
    grammar = reply_grammar(FORM, prompt, {}, limit=ThoughtLimit(BUDGET, CLOSE), **options)
    assert grammar is not None
    return grammar


class Reply:
    """Tokens that a grammar takes, one by one."""

    def __init__(self, grammar: str):
        self.matcher: TokenMatcher = GRAMMARS.matcher(grammar)
        self.tokens: list[int] = []

    def allowed(self) -> set[int]:
        mask = np.zeros(GRAMMARS.mask_words, np.int32)
        GRAMMARS.fill(mask, self.matcher)
        return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())

    def write(self, *tokens: int | str) -> bool:
        for token in tokens:
            self.tokens += [token] if isinstance(token, int) else token.encode()
        return self.matcher.follow(np.array(self.tokens, np.int32))


@pytest.mark.parametrize("prompt", [OPENED, PLAIN])
def test_the_thought_ends_where_the_budget_does(prompt: str) -> None:
    reply = Reply(grammar_for(prompt))
    assert prompt == OPENED or reply.write(OPEN)
    assert reply.write("a" * BUDGET)
    assert reply.allowed() == {CLOSE}
    assert reply.write(CLOSE, "Yes, <b>that</b> long an answer.") and EOS in reply.allowed()


def test_a_shorter_thought_ends_as_it_would() -> None:
    reply = Reply(grammar_for(OPENED))
    assert reply.write("ab", CLOSE, "An answer that is longer than the budget.")
    assert EOS in reply.allowed()


def test_no_thought_is_no_way_around_it() -> None:
    reply = Reply(grammar_for(PLAIN))
    assert not reply.write("An answer")


def test_tokens_that_come_at_once_count_each() -> None:
    """As guesses do."""
    reply = Reply(grammar_for(OPENED))
    assert not reply.write("a" * (BUDGET + 1))
    assert Reply(grammar_for(OPENED)).write("a" * BUDGET, CLOSE, "b")


@pytest.mark.parametrize("required", [True, False])
def test_calls_and_forms_follow(required: bool) -> None:
    calls = CallRule([CallSpec("now", {"type": "object"})], required=required)
    reply = Reply(grammar_for(OPENED, calls=calls))
    assert reply.write("a" * BUDGET) and reply.allowed() == {CLOSE}
    call = '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert reply.write(CLOSE, call) and EOS in reply.allowed()
    reply = Reply(grammar_for(OPENED, body=json_body({"type": "integer"}, {}, "x"), spaced=True))
    assert reply.write("a", CLOSE, "\n7") and EOS in reply.allowed()
    assert ord("a") not in reply.allowed()
