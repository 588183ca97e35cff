"""Tools of a model whose chat template shows none: in every dialect, through the same job."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from pagoda.text.parsers.select import parser_for
from pagoda.text.template.chat import ChatTemplate
from tests.server.conftest import RunningServer
from tests.server.fakes import FakeClient
from tests.server.test_tools import CALLS, NAMED, PARIS, ROME, TOOLS, USER, ask, tool
from tests.unit.grammar.bytes_vocabulary import ByteGrammars
from tests.unit.text.templates import CHATML

ONE = f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>'
DESCRIBED = '{"name": "weather", "parameters": {"type": "object", "properties": {"city": '
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.fixture
def serve(start) -> Callable[[str], RunningServer]:
    """A server whose model writes `reply`."""

    def serve(reply: str, source: str = CHATML) -> RunningServer:
        client = FakeClient(script=lambda request: reply.encode())
        template = ChatTemplate({"default": source}, {})
        return start(client, chat_template=template, parser=parser_for(source))

    return serve


def prompt_of(server: RunningServer) -> str:
    return bytes(server.client.requests[-1].prompt_token_ids).decode()


def test_the_system_turn_describes_the_tools(serve):
    server = serve(ONE)
    (choice,) = ask(server).choices
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", PARIS)
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    system, user, _ = prompt_of(server).split("<|im_end|>\n")
    assert system.startswith("<|im_start|>system\n# Tools\n") and DESCRIBED in system
    assert user == "<|im_start|>user\nHow is the weather in Paris?"


def test_the_clients_system_turn_stays_first(serve):
    server = serve("Sunny.")
    ask(server, messages=[{"role": "system", "content": "Be brief."}, *USER])
    assert prompt_of(server).startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert prompt_of(server).count("<|im_start|>system") == 1


def test_auto_leaves_text_free_and_holds_calls_to_their_schemas(serve):
    server = serve("Sunny.")
    (choice,) = ask(server).choices
    assert (choice.message.content, choice.message.tool_calls) == ("Sunny.", None)
    grammar, grammars = server.client.requests[-1].grammar, ByteGrammars()
    assert grammars.accepts(grammar, "Sunny.") and grammars.accepts(grammar, CALLS.strip())
    assert not grammars.accepts(grammar, ONE.replace("weather", "whether"))


@pytest.mark.parametrize(
    ("choice", "finish"), [("required", "tool_calls"), (NAMED, "stop")], ids=["required", "named"]
)
def test_a_call_that_is_asked_for_comes(serve, choice, finish):
    server = serve(ONE)
    reply = ask(server, tools=[*TOOLS, tool({"type": "object"})], tool_choice=choice).choices[0]
    assert reply.finish_reason == finish and reply.message.tool_calls
    grammar, grammars = server.client.requests[-1].grammar, ByteGrammars()
    other = ONE.replace("weather", "f")
    assert grammars.accepts(grammar, ONE) and not grammars.accepts(grammar, "Sunny.")
    assert grammars.accepts(grammar, other) == (choice == "required")


def test_none_shows_no_tools_and_reads_no_calls(serve):
    server = serve(ONE)
    (choice,) = ask(server, tool_choice="none").choices
    assert choice.message.content == ONE and "# Tools" not in prompt_of(server)


def test_one_call_to_a_reply(serve):
    server = serve(CALLS)
    asked = {"parallel_tool_calls": False, "tool_choice": "required"}
    (call,) = ask(server, **asked).choices[0].message.tool_calls
    assert call.function.arguments == PARIS
    assert not ByteGrammars().accepts(server.client.requests[-1].grammar, CALLS.strip())


def test_arguments_stream(serve):
    pieces = [
        call
        for chunk in ask(serve(CALLS), stream=True)
        for call in chunk.choices[0].delta.tool_calls or ()
    ]
    for index, arguments in enumerate((PARIS, ROME)):
        streamed = [piece.function.arguments for piece in pieces if piece.index == index]
        assert "".join(streamed) == arguments and len(streamed) > len(arguments) // 2


@pytest.mark.parametrize("strict", [True, False])
def test_strict_tools(serve, strict):
    schema = {"type": "object", "properties": {"a": {"not": {}}}}
    reply = serve("Sunny.").chat(tools=[tool(schema, strict=strict)])
    assert reply.status_code == (400 if strict else 200)


HISTORY: list[dict[str, Any]] = [
    *USER,
    {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [
            {"id": f"call_{i}", "type": "function",
             "function": {"name": "weather", "arguments": arguments}}
            for i, arguments in enumerate((PARIS, ROME))
        ],
    },
    {"role": "tool", "tool_call_id": "call_0", "content": "rain\nand wind"},
    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "sun"}]},
    {"role": "user", "content": "And tomorrow?"},
]  # fmt: skip
SPELLED = f"""\
<|im_start|>assistant
Let me see.
<tool_call>
{{"name": "weather", "arguments": {PARIS}, "id": "call_0"}}
</tool_call>
<tool_call>
{{"name": "weather", "arguments": {ROME}, "id": "call_1"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response id="call_0" name="weather">
rain
and wind
</tool_response>
<tool_response id="call_1" name="weather">
sun
</tool_response>
And tomorrow?<|im_end|>
<|im_start|>assistant
"""


@pytest.mark.parametrize("tools", [TOOLS, []], ids=["tools", "no tools"])
def test_earlier_calls_and_their_results(serve, tools):
    server = serve("Sunny.")
    assert server.chat(messages=HISTORY, tools=tools).status_code == 200
    assert prompt_of(server).endswith(SPELLED)
    assert ("# Tools" in prompt_of(server)) == bool(tools)


def test_a_picture_in_a_result_is_words_to_a_model_of_text(serve):
    """An agent that looked at a picture goes on."""
    server = serve("I see nothing.")
    seen = {"role": "tool", "tool_call_id": "call_0", "content": [PICTURE]}
    assert server.chat(messages=[*HISTORY[:2], seen], tools=TOOLS).status_code == 200
    words = "[image] (This model takes no pictures: it was left out.)\n</tool_response>"
    assert words in prompt_of(server)
    # In the user's own words it is refused, as ever.
    refused = server.chat(messages=[{"role": "user", "content": [PICTURE]}])
    assert refused.status_code == 400 and "reads text only" in refused.json()["error"]["message"]


NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    + CHATML
)


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "Be brief."}]])
def test_a_template_without_a_system_turn(serve, system):
    server = serve(ONE, NO_SYSTEM)
    assert ask(server, messages=[*system, *USER]).choices[0].message.tool_calls
    user = prompt_of(server).partition("<|im_end|>")[0]
    assert user.startswith("<|im_start|>user\n") and DESCRIBED in user
    assert ("Be brief." in user) == bool(system)
    assert user.endswith("\n\nHow is the weather in Paris?")


def test_messages_speak_of_the_same_tools(serve):
    server = serve(ONE)
    tools = [{"name": "weather", "input_schema": TOOLS[0]["function"]["parameters"]}]
    asked: dict[str, Any] = {"model": "fake", "max_tokens": 500, "tools": tools}
    called = server.anthropic().messages.create(messages=USER, **asked)
    (block,) = called.content
    assert (block.name, block.input, called.stop_reason) == (
        "weather", {"city": "Paris"}, "tool_use",
    )  # fmt: skip
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "rain"}
    history: list[Any] = [
        *USER,
        {"role": "assistant", "content": [block.model_dump(exclude_none=True)]},
        {"role": "user", "content": [result]},
    ]
    server.anthropic().messages.create(messages=history, tool_choice={"type": "any"}, **asked)
    assert DESCRIBED in prompt_of(server) and f'"id": "{block.id}"' in prompt_of(server)
    assert f'<tool_response id="{block.id}" name="weather">\nrain' in prompt_of(server)


def test_responses_speak_of_the_same_tools(serve):
    server = serve(ONE)
    tools = [{"type": "function", **TOOLS[0]["function"]}]
    asked: dict[str, Any] = {"model": "fake", "tools": tools}
    called = server.openai().responses.create(input="Weather?", **asked)
    (item,) = called.output
    assert (item.name, json.loads(item.arguments)) == ("weather", {"city": "Paris"})
    result = {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
    server.openai().responses.create(
        input=[result], previous_response_id=called.id, tool_choice="required", **asked
    )
    assert DESCRIBED in prompt_of(server)
    assert f'<tool_response id="{item.call_id}" name="weather">\nrain' in prompt_of(server)


@pytest.mark.parametrize("calls", [1, "x", [3], [{"id": 1}], [{"function": {"name": 2}}]], ids=str)
def test_what_is_no_call_ends_no_session(serve, calls):
    turn = {"role": "assistant", "content": "Hm.", "tool_calls": calls}
    reply = serve("Sunny.").chat(messages=[*USER, turn, *USER], tools=TOOLS)
    assert reply.status_code == (400 if calls == 1 else 200)


def test_a_parser_that_was_turned_off(start):
    parser = parser_for(CHATML, tool_calls="none")
    client = FakeClient(script=lambda request: ONE.encode())
    server = start(client, chat_template=ChatTemplate({"default": CHATML}, {}), parser=parser)
    (choice,) = ask(server).choices
    assert choice.message.content == ONE and "# Tools" not in prompt_of(server)
    refused = server.chat(tools=TOOLS, tool_choice="required")
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "tool_choice"
