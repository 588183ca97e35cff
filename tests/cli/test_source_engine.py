"""Replies from an engine of our own, with a fake in its place."""

import pytest

from pagoda.cli.talk.source import Piece, Usage
from pagoda.cli.talk.source_engine import EngineSource
from pagoda.core.structured import StructuredOutputsParams
from pagoda.text.parsers.select import parser_for
from pagoda.text.template.chat import ChatTemplate
from tests.server.fakes import FakeClient, Guessing, served_model

OPENED = "{{ messages[0].content }}<think>\n"
ANSWER = [("reasoning", "Hm."), ("text", "Well.")]


class Client(FakeClient):
    async def generate(self, request, media=None):
        self.requests.append(request)
        for delta in self.deltas(request):
            yield delta


class GuessingClient(Client, Guessing):
    """Eight tokens make three steps, of which two had guesses."""


def source_of(reply: bytes) -> EngineSource:
    template = ChatTemplate({"default": OPENED}, {})
    client = Client(script=lambda request: reply)
    parser = parser_for("</think>")
    return EngineSource(served_model(client, chat_template=template, parser=parser))


async def parts(stream) -> list[tuple[str, str]]:
    items = [item async for item in stream]
    assert isinstance(items.pop(), Usage)
    assert all(isinstance(item, Piece) for item in items)
    kinds = list(dict.fromkeys(item.kind for item in items))
    return [(kind, "".join(i.text for i in items if i.kind == kind)) for kind in kinds]


@pytest.mark.parametrize(
    ("way", "prompt", "reply"),
    [
        ("chat", [{"role": "user", "content": "hi"}], b"Hm.</think>Well."),
        ("complete", "hi", b"<think>Hm.</think>Well."),
        ("complete", "hi <think>\n", b"Hm.</think>Well."),
    ],
)
async def test_thought_and_answer_come_apart(way, prompt, reply):
    source = source_of(reply)
    assert await parts(getattr(source, way)(prompt, {})) == ANSWER


@pytest.mark.parametrize(
    ("way", "prompt"), [("chat", [{"role": "user", "content": "hi"}]), ("complete", "hi")]
)
async def test_a_grammar_holds_replies(way, prompt):
    source = source_of(b"yes")
    source.served.defaults["structured_outputs"] = StructuredOutputsParams(choice=["yes", "no"])
    await parts(getattr(source, way)(prompt, {}))
    assert "yes" in source.served.client.requests[-1].grammar


async def test_the_tokens_of_a_chat_are_counted():
    source = source_of(b"")
    ids = source.served.tokenizer.encode("hello<think>", add_special_tokens=False)
    assert await source.count([{"role": "user", "content": "hello"}]) == len(ids) > 0
    picky = ChatTemplate({"default": "{{ raise_exception('no answers') }}"}, {})
    source.served = served_model(source.served.client, chat_template=picky)
    assert await source.count([{"role": "user", "content": "hello"}]) is None
    source.served = served_model(source.served.client, chat_template=None)
    assert await source.count([{"role": "user", "content": "hello"}]) is None


async def test_usage_tells_of_guesses():
    source = source_of(b"a reply")
    source.served.client = GuessingClient(script=lambda request: b"a reply")
    items = [item async for item in source.complete("hi", {})]
    assert (items[-1].draft_tokens, items[-1].accepted_tokens) == (8, 4)
    items = [item async for item in source_of(b"a reply").complete("hi", {})]
    assert (items[-1].draft_tokens, items[-1].accepted_tokens) == (0, 0)
