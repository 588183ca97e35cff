"""Pagoda's own server, around a fake engine, behind each API that it shares with others."""

import asyncio
import contextlib

import pytest

from pagoda.text.parsers.select import parser_for
from pagoda.text.template.chat import ChatTemplate
from pagoda_agent.base.errors import ModelError
from pagoda_agent.dialects.qwen import Qwen
from pagoda_agent.models.dialogue import Message, Picture
from pagoda_agent.models.endpoint import Endpoint
from pagoda_agent.models.registry import make_model
from tests.agent.dialect_cases import SCREEN
from tests.server.conftest import running, wait_until
from tests.server.fakes import REPLY, FakeClient
from tests.server.seeing import png, seeing
from tests.unit.text.templates import QWEN_TOOLS

SHOT = Picture(png(), "image/png", (64, 32))
CONVERSATION = [
    Message("system", "Be brief."),
    Message("user", "Your task", (SHOT,)),
    Message("assistant", "I look."),
    Message("user", "And now?", (SHOT,)),
]


@pytest.fixture
def start():
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(running(*args, **kwargs))


@pytest.mark.parametrize("api", ["openai", "anthropic", "responses"])
async def test_pictures_and_usage(start, api):
    server = seeing(start)
    model = make_model(api, Endpoint(f"{server.url}/v1", "fake", retries=0, max_tokens=500))
    reply = await model.complete(CONVERSATION)
    await model.close()
    (request,) = server.client.requests
    assert reply.text == REPLY
    assert len(request.media) == 2
    assert reply.usage.input_tokens == len(request.prompt_token_ids)
    assert reply.usage.output_tokens > 0


async def test_tool_calls(start):
    written = (
        'I wait.\n<tool_call>\n{"name": "computer_use", "arguments": {"action": "wait", '
        '"time": 1}}\n</tool_call>'
    )
    template = ChatTemplate({"default": QWEN_TOOLS}, {})
    client = FakeClient(script=lambda request: written.encode())
    server = start(client, chat_template=template, parser=parser_for(QWEN_TOOLS))
    dialect = Qwen(as_tools=True)
    # Shorter than the dialect's: the fake engine's context has room for 2048 bytes.
    schema = {"type": "object", "properties": {"action": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "computer_use", "parameters": schema}}]
    model = make_model("openai", Endpoint(f"{server.url}/v1", "fake", retries=0))
    reply = await model.complete([Message("user", "Wait.")], tools)
    (call,) = reply.tool_calls
    assert (call.name, reply.text.strip()) == ("computer_use", "I wait.")
    parsed = dialect.parse(reply, SCREEN)
    results = dialect.result(parsed.call_ids, ["waited"])
    asked = Message("assistant", reply.text, tool_calls=(call,))
    again = await model.complete([Message("user", "Wait."), asked, *results], tools)
    assert again.tool_calls
    await model.close()


async def test_an_unknown_model_is_named_with_those_there_are(start):
    server = start(FakeClient())
    model = make_model("openai", Endpoint(f"{server.url}/v1", "qwen", retries=0))
    with pytest.raises(ModelError, match="has no model 'qwen'; it has: fake"):
        await model.complete([Message("user", "Hi")])
    await model.close()


async def test_cancelling_frees_the_engine(start):
    server = start(FakeClient(script=lambda request: b"." * 10_000, delay=0.05))
    model = make_model("openai", Endpoint(f"{server.url}/v1", "fake"))
    asking = asyncio.ensure_future(model.complete([Message("user", "Hi")]))
    await asyncio.to_thread(wait_until, lambda: server.client.running)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.to_thread(wait_until, lambda: not server.client.running)
    await model.close()
