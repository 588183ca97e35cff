"""The official Anthropic client, unmodified, against /v1/messages."""

import json
import socket
from typing import Any

import anthropic
import httpx
import pytest

from pagoda.config.server import ServerConfig
from pagoda.server.replies.translation import seal
from pagoda.text.template.chat import ChatTemplate
from tests.server.conftest import RunningServer, wait_until
from tests.server.fakes import REPLY, FakeClient
from tests.server.test_tools import PARIS, ROME
from tests.server.test_tools import REPLY as CALLING
from tests.unit.grammar.bytes_vocabulary import ByteGrammars

USER: list[Any] = [{"role": "user", "content": "hi"}]
PROMPT_TOKENS = len("user: hi\nassistant: ")
TOOLS: list[Any] = [
    {
        "name": "weather",
        "description": "Tells the weather.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
ASK = {"model": "fake", "max_tokens": 500, "messages": USER}
LATE_SYSTEM = [*USER, {"role": "system", "content": "Be brief."}, *USER]
REFUSING = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be first.') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}"
)


def ask(server: RunningServer, **options: Any) -> anthropic.types.Message:
    return server.anthropic().messages.create(**{**ASK, **options})


def stream(server: RunningServer, **options: Any) -> tuple[list[Any], anthropic.types.Message]:
    """The events, and what the client's own accumulator makes of them."""
    with server.anthropic().messages.stream(**{**ASK, **options}) as reply:
        return list(reply), reply.get_final_message()


def prompt_of(server: RunningServer) -> str:
    return bytes(server.client.requests[-1].prompt_token_ids).decode()


def shape(message: anthropic.types.Message) -> dict[str, Any]:
    """What does not differ between two replies to the same request."""
    fields = message.model_dump(exclude={"id"}, exclude_none=True)
    for block in fields["content"]:
        block.pop("id", None)
        block.pop("parsed_output", None)
    return fields


def test_whole(shared: RunningServer) -> None:
    message = ask(shared)
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", "fake")
    assert [(block.type, block.text) for block in message.content] == [("text", REPLY)]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.cache_read_input_tokens == PROMPT_TOKENS // 2
    assert message.usage.input_tokens == PROMPT_TOKENS - PROMPT_TOKENS // 2
    assert message.usage.cache_creation_input_tokens == 0
    assert message.usage.output_tokens == len(REPLY.encode()) + 1
    assert message._request_id


def test_events(shared: RunningServer) -> None:
    reply = shared.post("/v1/messages", **{**ASK, "max_tokens": 2}, stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    pairs = [part.split("\n") for part in reply.text.removesuffix("\n\n").split("\n\n")]
    names = [name.removeprefix("event: ") for name, _ in pairs]
    events = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert names == [event["type"] for event in events] == [
        "message_start", "ping", "content_block_start", "content_block_delta",
        "content_block_delta", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["stop_reason"] is None
    assert events[3] == {
        "type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "H"},
    }  # fmt: skip
    assert events[6]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[6]["usage"]["output_tokens"] == 2


def test_stream_is_the_whole(shared: RunningServer) -> None:
    events, message = stream(shared)
    assert "".join(event.text for event in events if event.type == "text") == REPLY
    assert shape(message) == shape(ask(shared))


def test_thought_text_and_calls_in_order(serve) -> None:
    server = serve(CALLING)
    events, message = stream(server, tools=TOOLS)
    kinds = [block.type for block in message.content]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    starts = [event for event in events if event.type == "content_block_start"]
    stops = [event.index for event in events if event.type == "content_block_stop"]
    assert [start.content_block.type for start in starts] == kinds
    assert [start.index for start in starts] == stops == [0, 1, 2, 3]
    thinking, text, *calls = message.content
    assert thinking.thinking == "Two cities." and thinking.signature
    assert text.text == "\n\nLet me see."
    assert [(call.name, call.input) for call in calls] == [
        ("weather", json.loads(PARIS)), ("weather", json.loads(ROME)),
    ]  # fmt: skip
    assert len({call.id for call in calls}) == 2
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens_details.thinking_tokens == len("Two cities.")
    pieces = [event for event in events if event.type == "input_json"]
    assert len(pieces) > len(PARIS), "arguments stream token by token"
    assert shape(message) == shape(ask(server, tools=TOOLS))


def test_calls_and_results_go_back_into_the_template(serve) -> None:
    server = serve(CALLING)
    message = ask(server, tools=TOOLS)
    one, other = (block.id for block in message.content if block.type == "tool_use")
    results = [
        {"type": "tool_result", "tool_use_id": one, "content": "sunny"},
        {"type": "tool_result", "tool_use_id": other, "is_error": True,
         "content": [{"type": "text", "text": "no such city"}]},
        {"type": "text", "text": "And now?"},
    ]  # fmt: skip
    ask(
        server,
        tools=TOOLS,
        messages=[*USER, message.to_param(), {"role": "user", "content": results}],
    )
    prompt = prompt_of(server)
    assert f'{{"name": "weather", "arguments": {PARIS}}}' in prompt
    assert "<tool_response>\nsunny\n</tool_response>" in prompt
    assert "<tool_response>\nError:\nno such city\n</tool_response>" in prompt
    assert prompt.endswith("<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n")
    assert '"description": "Tells the weather."' in prompt


def test_a_call_cut_off_keeps_what_there_is(serve) -> None:
    message = ask(serve(CALLING), tools=TOOLS, max_tokens=CALLING.index(PARIS) + 5)
    assert message.stop_reason == "max_tokens"
    (cut,) = message.content[-1].input.items()
    assert cut == ("INVALID_JSON", PARIS[:5])


def test_one_call_at_a_time(serve) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    message = ask(serve(CALLING), tools=TOOLS, tool_choice=choice)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]


def test_tool_choice_none_hides_the_tools(serve) -> None:
    server = serve(CALLING)
    message = ask(server, tools=TOOLS, tool_choice={"type": "none"})
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert "<tools>" not in prompt_of(server)


@pytest.mark.parametrize(
    ("system", "told"),
    [
        ("Be kind.", "Be kind."),
        ([{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}},
          {"type": "text", "text": "Be brief."}], "Be kind.\nBe brief."),
        ([{"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=a1b2c;"},
          {"type": "text", "text": "Be kind."}], "Be kind."),
        ("x-anthropic-billing-header: cch=a1b2c;\nBe kind.", "Be kind."),
    ],
)  # fmt: skip
def test_system(shared: RunningServer, system: Any, told: str) -> None:
    ask(shared, system=system)
    assert prompt_of(shared) == f"system: {told}\nuser: hi\nassistant: "


def test_a_late_system_message_stays_in_its_place(shared: RunningServer) -> None:
    """Moved to the front it would cost agents every cached prefix."""
    ask(shared, messages=LATE_SYSTEM, system="Be kind.")
    assert prompt_of(shared) == (
        "system: Be kind.\nuser: hi\nsystem: Be brief.\nuser: hi\nassistant: "
    )


def test_a_template_that_takes_no_late_system_message(start) -> None:
    server = start(FakeClient(), chat_template=ChatTemplate({"default": REFUSING}, {}))
    ask(server, messages=LATE_SYSTEM)
    assert prompt_of(server) == "user: hi\nBe brief.\nhi\n"
    assert server.anthropic().messages.count_tokens(
        model="fake", messages=LATE_SYSTEM
    ).input_tokens == len(prompt_of(server))


def test_turns_in_a_row_are_one(shared: RunningServer) -> None:
    ask(shared, messages=[*USER, *USER, {"role": "assistant", "content": "a"}, *USER])
    assert prompt_of(shared) == "user: hi\nhi\nassistant: a\nuser: hi\nassistant: "


def test_a_reply_that_is_begun_goes_on(shared: RunningServer) -> None:
    message = ask(shared, messages=[*USER, {"role": "assistant", "content": "Well, "}])
    assert prompt_of(shared) == "user: hi\nassistant: Well, "
    assert message.content[0].text == REPLY


def test_stop_sequence(shared: RunningServer) -> None:
    message = ask(shared, stop_sequences=["three", "counts"])
    assert message.content[0].text == REPLY.partition("counts")[0]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "counts")


def test_sampling_reaches_the_engine(shared: RunningServer) -> None:
    fields = {
        "temperature": 0.5, "top_k": 7, "top_p": 0.25, "max_tokens": 9,
        "cache_salt": "salt", "seed": 3, "min_p": 0.5, "priority": 2,
    }  # fmt: skip
    assert shared.post("/v1/messages", **{**ASK, **fields}).status_code == 200
    request = shared.client.requests[-1]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 7, 0.25)
    assert (sampling.max_tokens, sampling.seed, sampling.min_p) == (9, 3, 0.5)
    assert (request.cache_salt, request.priority) == ("salt", 2)


def test_more_tokens_than_the_context_has_left(start) -> None:
    server = start(FakeClient(script=lambda request: b"x" * 5000))
    message = ask(server, max_tokens=20_000)
    assert message.stop_reason == "model_context_window_exceeded"
    assert message.usage.output_tokens == 2048 - PROMPT_TOKENS


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, ""),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1500}, "True"),
        ({"thinking": {"type": "enabled", "budget_tokens": 50}, "max_tokens": 100}, "True"),
        ({"thinking": {"type": "adaptive"}}, "True"),
        ({"thinking": {"type": "disabled"}}, "False"),
        ({"output_config": {"effort": "high"}}, "Truehigh"),
        ({"thinking": {"type": "adaptive"},
          "extra_body": {"chat_template_kwargs": {"enable_thinking": "mine"}}}, "mine"),
    ],
)  # fmt: skip
def test_thinking_sets_the_template(start, fields: dict[str, Any], told: str) -> None:
    source = "{{ enable_thinking }}{{ reasoning_effort }}|"
    server = start(FakeClient(), chat_template=ChatTemplate({"default": source}, {}))
    ask(server, **fields)
    assert prompt_of(server) == told + "|"


def test_thought_that_is_not_shown_comes_back_sealed(start) -> None:
    source = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.content }};{% endfor %}"
    template = ChatTemplate({"default": source}, {})
    server = start(FakeClient(script=lambda request: b"<deep|42"), chat_template=template)
    thinking = {"type": "adaptive", "display": "omitted"}
    events, message = stream(server, thinking=thinking)
    assert not any(event.type == "thinking" for event in events)
    assert (message.content[0].thinking, message.content[1].text) == ("", "42")
    ask(server, messages=[*USER, message.to_param(), *USER])
    assert prompt_of(server) == "|hi;deep|42;|hi;"


def test_thought_of_others_is_left_out(shared: RunningServer) -> None:
    blocks = [
        {"type": "redacted_thinking", "data": "opaque"},
        {"type": "thinking", "thinking": "", "signature": "EqQB"},
        {"type": "thinking", "thinking": "", "signature": seal("x")[:-1]},
        {"type": "text", "text": "a"},
    ]
    ask(shared, messages=[*USER, {"role": "assistant", "content": blocks}, *USER])
    assert prompt_of(shared) == "user: hi\nassistant: a\nuser: hi\nassistant: "


def test_count_tokens(serve) -> None:
    server = serve(CALLING)
    same = {"model": "fake", "messages": USER, "tools": TOOLS, "system": "Be kind."}
    count = server.anthropic().messages.count_tokens(**same)
    usage = server.anthropic().messages.create(**same, max_tokens=1).usage
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    assert count.input_tokens == len(prompt_of(server).encode())


def error_of(reply: httpx.Response, status: int, kind: str) -> str:
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert set(body) == {"type", "error", "request_id"}
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["request_id"] == reply.headers["request-id"] == reply.headers["x-request-id"]
    return body["error"]["message"]


def turn(role: str, **block: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [block]}, *USER]}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "assistant", "content": []}]}, "messages"),
        (turn("user", type="text", text=5), "messages.0.content.0.text"),
        (turn("user", type="text"), "messages.0.content.0.text"),
        (turn("user"), "messages.0.content.0"),
        (turn("user", type={}), "messages.0.content.0"),
        (turn("user", type="document"), "messages.0.content.0.source"),
        (turn("user", type="tool_reference"), "messages.0.content.0.tool_name"),
        (turn("user", type="hologram"), "'hologram'"),
        (turn("user", type="image", source={"type": "base64", "media_type": "image/png",
              "data": "AAAA"}), "reads text only"),
        (turn("user", type="image", source={"type": "url", "url": "http://x"}), "reads text only"),
        (turn("user", type="image"), "messages.0.content.0.source"),
        (turn("user", type="tool_result"), "messages.0.content.0.tool_use_id"),
        (turn("user", type="tool_result", tool_use_id="a", content=5),
         "messages.0.content.0.content"),
        (turn("user", type="tool_result", tool_use_id="a", content=[5]),
         "messages.0.content.0.content"),
        (turn("assistant", type="tool_use", id="a", name="b", input="{}"),
         "messages.0.content.0.input"),
        (turn("assistant", type="tool_use", name="b", input={}), "messages.0.content.0.id"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system.0.text"),
        ({"temperature": 3}, "temperature"),
        ({"top_k": -5}, "top_k"),
        ({"stop_sequences": [""]}, "stop"),
        ({"tools": [{"name": "x"}]}, "tools.0.input_schema"),
        ({"tools": TOOLS, "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "weather"}}, "tool_choice"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
         "`not` at #"),
        ({"output_config": {"format": {"type": "regex"}}}, "output_config.format"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 2000},
         "thinking.budget_tokens"),
        ({"n": 2}, "n is not supported"),
        ({"stop": ["x"]}, "stop"),
        ({"structured_outputs": {"regex": "(a"}}, "unclosed group"),
        ({"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, "prompt is too long"),
    ],
)  # fmt: skip
def test_bad_field_is_named(shared: RunningServer, fields: dict[str, Any], told: str) -> None:
    reply = shared.post("/v1/messages", **{**ASK, **fields})
    assert told in error_of(reply, 400, "invalid_request_error")


def test_hints_of_anthropics_platform_are_ignored(shared: RunningServer) -> None:
    hints = {
        "metadata": {"user_id": "u"}, "service_tier": "auto",
        "cache_control": {"type": "ephemeral"}, "context_management": {"edits": []},
        "mcp_servers": [], "betas": ["x"],
    }  # fmt: skip
    assert shared.post("/v1/messages?beta=true", **ASK, **hints).status_code == 200


def test_errors_before_the_route(start) -> None:
    server = start(FakeClient(), ServerConfig(max_body_bytes=2000))
    post = server.post
    error_of(post("/v1/messages", **{**ASK, "model": "claude"}), 404, "not_found_error")
    error_of(post("/v1/messages/batches"), 404, "not_found_error")
    error_of(server.http.get("/v1/messages"), 405, "invalid_request_error")
    error_of(post("/v1/messages", **ASK, x="y" * 3000), 413, "request_too_large")
    raw = server.http.post(
        "/v1/messages", content=b"{", headers={"content-type": "application/json"}
    )
    assert "JSON" in error_of(raw, 400, "invalid_request_error")
    assert set(post("/v1/messagesx").json()) == {"error"}


def test_keys(start) -> None:
    server = start(FakeClient(), ServerConfig(api_key=("one",)))
    error_of(server.post("/v1/messages", **ASK), 401, "authentication_error")
    with pytest.raises(anthropic.AuthenticationError):
        ask(server)
    client = anthropic.Anthropic(base_url=server.url, api_key="one", max_retries=0)
    assert client.messages.create(**ASK).content[0].text == REPLY


def test_an_engine_that_is_not_ready_is_overloaded(start) -> None:
    server = start(FakeClient(state="starting"))
    assert "retry-after" in server.post("/v1/messages", **ASK).headers
    with pytest.raises(anthropic.APIStatusError) as raised:
        ask(server)
    assert (raised.value.status_code, raised.value.type) == (529, "overloaded_error")
    assert raised.value.request_id


def test_engine_death_in_mid_stream(start) -> None:
    server = start(FakeClient(die_after=3))
    with pytest.raises(anthropic.APIStatusError, match="killed by a test") as raised:
        stream(server)
    assert raised.value.type == "overloaded_error"
    assert server.post("/v1/messages", **ASK).status_code == 529


@pytest.mark.parametrize("streamed", [True, False])
def test_disconnect_aborts(start, streamed: bool) -> None:
    client = FakeClient(delay=0.02)
    server = start(client)
    body = json.dumps({**ASK, "stream": streamed}).encode()
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)) as connection:
        connection.sendall(
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        wait_until(lambda: len(client.running) == 1)
    wait_until(lambda: not client.running)
    assert len(client.aborted) == 1


INTEGER = {"type": "integer"}


def grammar_of(server: RunningServer) -> str:
    return server.client.requests[-1].grammar or ""


def test_a_schema_is_enforced(shared):
    ask(shared, output_config={"format": {"type": "json_schema", "schema": INTEGER}})
    assert ByteGrammars().accepts(grammar_of(shared), "17")
    assert not ByteGrammars().accepts(grammar_of(shared), "many")
    ask(shared)
    assert grammar_of(shared) == ""


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_calls_that_are_asked_for_are_enforced(serve, choice):
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    server = serve(call)
    reply = ask(server, tools=TOOLS, tool_choice=choice)
    assert reply.stop_reason == "tool_use" and reply.content[-1].input == {"city": "Paris"}
    assert ByteGrammars().accepts(grammar_of(server), call)
    assert not ByteGrammars().accepts(grammar_of(server), "Sunny.")


def test_what_is_not_enforced_is_told(serve):
    schema = {"type": "object", "properties": {"city": {"type": "string", "not": {}}}}
    reply = serve(CALLING).post("/v1/messages", **ASK, tools=[{**TOOLS[0], "input_schema": schema}])
    assert "not" in reply.headers["Pagoda-Not-Enforced"]
