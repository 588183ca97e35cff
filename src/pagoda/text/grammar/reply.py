"""The grammar of a whole reply: thought first, then an answer of a given form, or calls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pagoda.text.grammar.calls import CallForm, CallSpec
from pagoda.text.grammar.rules import SPACE, Rules, either, optional

Body = Callable[[Rules], str]
"""Writes the rules of an answer and returns the expression for it."""


@dataclass(frozen=True)
class ThoughtLimit:
    """So many tokens of thought at most, and the token that ends it."""

    tokens: int
    closing_id: int


class ReplyForm(Protocol):
    """How the models of one family write a reply."""

    @property
    def closing(self) -> str | None:
        """The tag that ends a thought; None where there is none, or it ends other things, too."""

    @property
    def calls(self) -> CallForm | None:
        """None: they have no calls."""

    def end_of_thought(self, prompt: str) -> str:
        """What ends the thought that a prompt has opened; empty where it opened none."""

    def opening(self, rules: Rules, prompt: str, limit: ThoughtLimit | None = None) -> str:
        """What may stand before an answer to this prompt (a thought); empty for nothing. With a
        limit, for forms that have a `closing`, the thought must be there: as part of the answer it
        would have none."""

    def answer(self, rules: Rules, body: str) -> str:
        """An answer with such a body."""


@dataclass(frozen=True)
class CallRule:
    """The calls of a reply. Not `required`, they stand in text, or instead of the answer."""

    tools: Sequence[CallSpec]
    required: bool
    several: bool = True


def reply_grammar(
    form: ReplyForm,
    prompt: str,
    special_ids: Mapping[str, int],
    *,
    body: Body | None = None,
    calls: CallRule | None = None,
    spaced: bool = False,
    limit: ThoughtLimit | None = None,
) -> str | None:
    """A reply to the prompt, in llguidance's Lark; None where there is nothing to enforce.

    `spaced`: white space may stand before the body.
    """
    rules = Rules(special_ids)
    opening = form.opening(rules, prompt, limit)
    free = None if limit is None else rules.start(f"{opening} {rules.anything()}")
    call_form = form.calls
    answer = None if body is None else form.answer(rules, body(rules))
    if calls is None or call_form is None:
        if answer is None:
            return free
        space = optional(rules.rule(SPACE)) if spaced else ""
        return rules.start(f"{opening} {space} {answer}")
    if answer is None and not calls.required:
        if not call_form.trigger:
            return free
        return rules.start(f"{opening} {call_form.calls_in_text(rules, calls.tools)}")
    called = call_form.calls(rules, calls.tools, several=calls.several)
    wanted = called if answer is None or calls.required else either(called, answer)
    return rules.start(f"{opening} {optional(rules.rule(SPACE))} {wanted}")
