"""Tool calls through the official client: whole, streamed, and back again as history."""

import json
from typing import Any

import pytest

from pagoda.engine.served.text_side import TextSide
from pagoda.text.parsers.select import parser_for
from tests.server.conftest import RunningServer
from tests.server.fakes import ByteTokenizer
from tests.unit.grammar.bytes_vocabulary import ByteGrammars

USER = [{"role": "user", "content": "How is the weather in Paris?"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
PARIS, ROME = '{"city": "Paris"}', '{"city": "Rome"}'
CALLS = "".join(
    f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>\n'
    for arguments in (PARIS, ROME)
)
REPLY = "<think>Two cities.</think>\n\nLet me see.\n" + CALLS


def ask(server: RunningServer, **options: Any) -> Any:
    options = {"model": "fake", "messages": USER, "tools": TOOLS, **options}
    return server.openai().chat.completions.create(**options)


def test_calls_in_a_whole_reply(serve):
    (choice,) = ask(serve(REPLY)).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "\n\nLet me see."
    assert choice.message.reasoning == choice.message.reasoning_content == "Two cities."
    calls = choice.message.tool_calls
    assert [(c.type, c.function.name, c.function.arguments) for c in calls] == [
        ("function", "weather", PARIS),
        ("function", "weather", ROME),
    ]
    assert len({c.id for c in calls}) == 2 and all(c.id.startswith("call_") for c in calls)


def test_content_is_null_beside_calls_alone(serve):
    (choice,) = ask(serve(CALLS)).choices
    assert choice.message.content is None
    assert len(choice.message.tool_calls) == 2


def test_a_reply_without_calls_has_no_field_for_them(serve):
    server = serve("Sunny.")
    message = server.chat(tools=TOOLS).json()["choices"][0]["message"]
    assert message["content"] == "Sunny." and "tool_calls" not in message


def test_calls_in_a_stream(serve):
    chunks = list(ask(serve(REPLY), stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "\n\nLet me see."
    pieces = [call for delta in deltas for call in delta.tool_calls or ()]
    for index, arguments in enumerate((PARIS, ROME)):
        first, *others = [call for call in pieces if call.index == index]
        assert (first.type, first.function.name) == ("function", "weather")
        assert first.id.startswith("call_")
        assert all(c.id is None and c.type is None and c.function.name is None for c in others)
        streamed = [call.function.arguments for call in (first, *others)]
        assert "".join(streamed) == arguments
        assert len(streamed) > len(arguments) // 2, "arguments stream token by token"
    assert [c.choices[0].finish_reason for c in chunks][-1] == "tool_calls"
    assert not any(c.choices[0].finish_reason for c in chunks[:-1])


def test_the_official_accumulator_takes_the_stream(serve):
    """openai's own helper puts the pieces together and parses the arguments."""
    client = serve(REPLY).openai()
    with client.chat.completions.stream(model="fake", messages=USER, tools=TOOLS) as stream:
        events = [event.type for event in stream]
        (choice,) = stream.get_final_completion().choices
    assert events.count("tool_calls.function.arguments.done") == 2
    assert [call.function.arguments for call in choice.message.tool_calls] == [PARIS, ROME]


@pytest.mark.parametrize("stream", [False, True])
def test_tool_choice_none_hides_the_tools(serve, stream):
    server = serve(CALLS)
    reply = ask(server, tool_choice="none", stream=stream)
    if stream:
        choices = [chunk.choices[0] for chunk in reply]
        text = "".join(choice.delta.content or "" for choice in choices)
        finish = choices[-1].finish_reason
    else:
        text, finish = reply.choices[0].message.content, reply.choices[0].finish_reason
    assert (text, finish) == (CALLS, "stop")
    prompt = bytes(server.client.requests[-1].prompt_token_ids).decode()
    assert "weather" in prompt and "<tools>" not in prompt


def test_auto_offers_the_tools(serve):
    server = serve("Sunny.")
    ask(server, tool_choice="auto")
    assert "<tools>" in bytes(server.client.requests[-1].prompt_token_ids).decode()


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_at_a_time(serve, stream):
    reply = ask(serve(REPLY), parallel_tool_calls=False, stream=stream)
    if stream:
        pieces = [c for chunk in reply for c in chunk.choices[0].delta.tool_calls or ()]
        assert {piece.index for piece in pieces} == {0}
        assert "".join(piece.function.arguments for piece in pieces) == PARIS
    else:
        (call,) = reply.choices[0].message.tool_calls
        assert call.function.arguments == PARIS


def test_a_reply_cut_off_says_so(serve):
    (choice,) = ask(serve(CALLS), max_tokens=len(CALLS) // 3).choices
    assert choice.finish_reason == "length"
    (call,) = choice.message.tool_calls
    assert PARIS.startswith(call.function.arguments)


def test_malformed_calls_come_back_as_text(serve):
    broken = '<tool_call>{"name": weather}</tool_call>'
    (choice,) = ask(serve(broken)).choices
    assert (choice.message.content, choice.finish_reason) == (broken, "stop")


def test_calls_of_several_choices(serve):
    choices = ask(serve(CALLS), n=2).choices
    ids = {call.id for choice in choices for call in choice.message.tool_calls}
    assert len(ids) == 4


def test_calls_and_results_go_back_into_the_template(serve):
    server = serve(CALLS)
    message = ask(server).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls
    ]
    history = [*USER, message.model_dump(exclude_none=True), *results]
    ask(server, messages=history)
    prompt = bytes(server.client.requests[-1].prompt_token_ids).decode()
    assert f'{{"name": "weather", "arguments": {PARIS}}}' in prompt
    assert prompt.count("<tool_response>\nsunny") == 2
    assert "None" not in prompt


def test_arguments_that_a_model_botched_are_taken_back(serve):
    """Agents replay what they got; a history must never be refused for it."""
    server = serve("Sorry.")
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"ci'}}
    history = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "no JSON"},
    ]
    assert ask(server, messages=history).choices[0].message.content == "Sorry."
    prompt = bytes(server.client.requests[-1].prompt_token_ids).decode()
    assert json.dumps('{"ci') in prompt


class ControlTokens(ByteTokenizer):
    """With Mistral's tokens of its own."""

    texts = {257: b"[TOOL_CALLS]", 258: b"[ARGS]", 259: b"[INST]"}
    vocab_size = 260
    special_ids = frozenset({256, *texts})

    def token_bytes(self, token_id: int) -> bytes:
        return self.texts.get(token_id) or super().token_bytes(token_id)


@pytest.mark.parametrize(("tools", "calls", "content"), [(TOOLS, [PARIS], "Hi"), ([], None, None)])
def test_markup_of_special_tokens(serve, tools, calls, content):
    """The parser sees them though the client must not; others are left out as ever."""
    tokenizer, parser = ControlTokens(), parser_for("[TOOL_CALLS]")
    shown = TextSide(None, tokenizer, None, parser, {}).markup_ids
    assert shown == {257, 258}
    reply = [*b"Hi", 259, 257, *b"weather", 258, *PARIS.encode()]
    server = serve(reply, tokenizer=tokenizer, parser=parser, markup_ids=shown)
    (choice,) = server.chat(tools=tools).json()["choices"]
    message = choice["message"]
    assert message["content"] == (content or f"Hiweather{PARIS}")
    found = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    assert found == (calls or [])


NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize(
    ("choice", "finish"), [("required", "tool_calls"), (NAMED, "stop")], ids=["required", "named"]
)
def test_required_calls_are_enforced(serve, choice, finish):
    """Named ones end with `stop`, as OpenAI's do."""
    server = serve(CALLS)
    reply = ask(server, tool_choice=choice)
    assert reply.choices[0].finish_reason == finish
    grammar = server.client.requests[-1].grammar
    bytes_only = ByteGrammars()
    assert bytes_only.accepts(grammar, CALLS.strip().splitlines()[0]) is False
    one = CALLS[: CALLS.index("</tool_call>") + len("</tool_call>")]
    assert bytes_only.accepts(grammar, one)
    assert bytes_only.accepts(grammar, CALLS.strip()) == (choice == "required")
    assert not bytes_only.accepts(grammar, "Sunny.")


def test_calls_in_free_text_are_held_to_their_schemas(serve):
    server = serve("Sunny.")
    ask(server)
    grammar, bytes_only = server.client.requests[-1].grammar, ByteGrammars()
    assert bytes_only.accepts(grammar, "Sunny.")
    assert bytes_only.accepts(grammar, CALLS.strip())
    assert not bytes_only.accepts(grammar, CALLS.strip().replace("Paris", "Par\x00is"))


def tool(parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **more}}


def test_what_is_not_enforced_is_told_and_not_refused(serve):
    server = serve("Sunny.")
    reply = server.chat(tools=[tool({"type": "array", "uniqueItems": True}), *TOOLS])
    assert reply.status_code == 200
    (told,) = json.loads(reply.headers["Pagoda-Not-Enforced"])
    assert told == "f: `uniqueItems` at # is not supported"
    assert "Pagoda-Not-Enforced" not in server.chat(tools=TOOLS).headers


def test_a_strict_tool_that_cannot_be_enforced_is_refused(serve):
    schema = {"type": "object", "properties": {"a": {"not": {}}}}
    reply = serve("Sunny.").chat(tools=[tool(schema, strict=True)])
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == "tools[0].function.parameters"
    assert "`not` at #/properties/a" in error["message"]


@pytest.mark.parametrize(
    ("choice", "allowed"),
    [
        ({"type": "allowed_tools", "mode": "required", "tools": [NAMED]}, True),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}, True),
        ({"type": "function", "function": {"name": "wether"}}, False),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, False),
        ({"type": "custom"}, False),
        ("any", False),
    ],
    ids=str,
)
def test_choices_among_tools(serve, choice, allowed):
    server = serve(CALLS)
    reply = server.chat(tools=[*TOOLS, tool({"type": "object"})], tool_choice=choice)
    assert reply.status_code == (200 if allowed else 400)
    if allowed:
        assert '\\"name\\": \\"f\\"' not in (server.client.requests[-1].grammar or "")
    else:
        assert reply.json()["error"]["param"] == "tool_choice"


def test_a_call_without_tools_is_refused(serve):
    assert serve(CALLS).chat(tool_choice="required").json()["error"]["param"] == "tool_choice"
