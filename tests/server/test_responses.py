"""The official OpenAI client, unmodified, against /v1/responses."""

import json
import socket
from typing import Any

import httpx
import openai
import pytest

from pagoda.text.template.chat import ChatTemplate
from tests.server.conftest import RunningServer, wait_until
from tests.server.fakes import REPLY, FakeClient
from tests.server.test_tools import PARIS, ROME
from tests.server.test_tools import REPLY as CALLING
from tests.unit.grammar.bytes_vocabulary import ByteGrammars

PROMPT_TOKENS = len("user: hi\nassistant: ")
ASK: dict[str, Any] = {"model": "fake", "input": "hi"}
TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": False,
    }
]
EPHEMERAL = {"id", "call_id", "created_at", "completed_at"}


def ask(server: RunningServer, **options: Any) -> Any:
    return server.openai().responses.create(**{**ASK, **options})


def prompt_of(server: RunningServer) -> str:
    return bytes(server.client.requests[-1].prompt_token_ids).decode()


def settled(server: RunningServer, response_id: str) -> Any:
    """The response once it is over."""
    retrieve = server.openai().responses.retrieve
    wait_until(lambda: retrieve(response_id).status not in ("queued", "in_progress"))
    return retrieve(response_id)


def shape(value: Any) -> Any:
    """What does not differ between two responses to the same request."""
    if isinstance(value, dict):
        return {k: shape(v) for k, v in value.items() if k not in EPHEMERAL}
    return [shape(item) for item in value] if isinstance(value, list) else value


def events_of(text: str) -> list[Any]:
    pairs = [part.split("\n") for part in text.removesuffix("\n\n").split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert [name for name, _ in pairs] == [f"event: {event['type']}" for event in events]
    return events


def test_whole(shared: RunningServer) -> None:
    response = ask(shared, metadata={"a": "b"}, instructions="Be kind.", temperature=0.5)
    assert response.id.startswith("resp_") and response.object == "response"
    assert response.status == "completed" and response.error is None
    assert response.output_text == REPLY
    (item,) = response.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    prompt = len("system: Be kind.\n") + PROMPT_TOKENS
    assert response.usage.input_tokens == prompt
    assert response.usage.input_tokens_details.cached_tokens == prompt // 2
    assert response.usage.output_tokens == len(REPLY.encode()) + 1
    assert response.usage.total_tokens == prompt + len(REPLY.encode()) + 1
    assert (response.metadata, response.instructions) == ({"a": "b"}, "Be kind.")
    assert (response.temperature, response.store, response.background) == (0.5, True, False)
    assert response.completed_at >= response.created_at


def test_the_path_without_a_version(shared: RunningServer) -> None:
    reply = shared.post("/responses", input="hi").json()
    assert reply["status"] == "completed" and reply["object"] == "response"


def test_events(shared: RunningServer) -> None:
    reply = shared.post("/v1/responses", **ASK, max_output_tokens=2, stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = events_of(reply.text)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.delta", "output_text.done", "content_part.done", "output_item.done",
        "incomplete",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    assert events[4]["delta"] == "H" and events[6]["text"] == "He"
    assert events[8]["item"]["status"] == "incomplete"
    last = events[-1]["response"]
    assert last["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["output"] == [events[8]["item"]]


def test_the_official_accumulator_takes_the_stream(serve) -> None:
    server = serve(CALLING)
    with server.openai().responses.stream(**ASK, tools=TOOLS) as stream:
        names = [event.type for event in stream]
        streamed = stream.get_final_response()
    assert names.count("response.function_call_arguments.done") == 2
    assert names.count("response.reasoning_text.delta") > 1
    stored = server.openai().responses.retrieve(streamed.id)
    assert stored.output_text == streamed.output_text
    whole = server.post("/v1/responses", **ASK, tools=TOOLS).json()
    assert shape(stored.to_dict()) == shape(whole)


def test_thought_text_and_calls_in_order(serve) -> None:
    server = serve(CALLING)
    thought, text, *calls = ask(server, tools=TOOLS).output
    assert (thought.type, thought.content[0].text) == ("reasoning", "Two cities.")
    assert (text.type, text.content[0].text) == ("message", "\n\nLet me see.")
    assert [(call.type, call.name, call.arguments) for call in calls] == [
        ("function_call", "weather", PARIS), ("function_call", "weather", ROME),
    ]  # fmt: skip
    assert len({call.call_id for call in calls}) == 2
    usage = ask(server, tools=TOOLS).usage
    assert usage.output_tokens_details.reasoning_tokens == len("Two cities.")
    events = events_of(server.post("/v1/responses", **ASK, tools=TOOLS, stream=True).text)
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == [0, 1, 2, 3]
    for index, arguments in ((2, PARIS), (3, ROME)):
        pieces = [
            event["delta"]
            for event in events
            if event["type"] == "response.function_call_arguments.delta"
            and event["output_index"] == index
        ]
        assert "".join(pieces) == arguments and len(pieces) > len(arguments) // 2


def test_calls_and_results_go_back_into_the_template(serve) -> None:
    server = serve(CALLING)
    first = ask(server, tools=TOOLS)
    calls = [item for item in first.output if item.type == "function_call"]
    results: list[Any] = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        for call in calls
    ]
    ask(server, previous_response_id=first.id, input=results, tools=TOOLS)
    chained = prompt_of(server)
    assert f'{{"name": "weather", "arguments": {PARIS}}}' in chained
    assert chained.count("<tool_response>\nsunny") == 2
    # All of it sent again, as clients do that store nothing.
    history: list[Any] = [{"role": "user", "content": "hi"}]
    history += [item.model_dump(exclude_none=True) for item in first.output]
    ask(server, input=history + results, tools=TOOLS, store=False)
    assert prompt_of(server) == chained


def test_one_call_at_a_time_or_none(serve) -> None:
    server = serve(CALLING)
    kinds = [item.type for item in ask(server, tools=TOOLS, parallel_tool_calls=False).output]
    assert kinds == ["reasoning", "message", "function_call"]
    assert len(ask(server, tools=TOOLS, tool_choice="none").output) == 2
    assert "<tools>" not in prompt_of(server)


def test_conversation(shared: RunningServer) -> None:
    first = ask(shared, instructions="Be kind.")
    second = ask(shared, input="and?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    ask(shared, input="so?", previous_response_id=second.id, instructions="Be brief.")
    # Instructions are those of the last request alone.
    assert prompt_of(shared) == (
        f"system: Be brief.\nuser: hi\nassistant: {REPLY}\nuser: and?\nassistant: {REPLY}\n"
        "user: so?\nassistant: "
    )


def test_every_form_of_input(shared: RunningServer) -> None:
    items: list[Any] = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "a"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": "c"},
    ]
    ask(shared, input=items)
    assert prompt_of(shared) == (
        "system: Be kind.\nuser: a\nb\nassistant: no\nuser: c\nassistant: "
    )


def test_references_to_items(shared: RunningServer) -> None:
    first = ask(shared)
    reference: Any = {"type": "item_reference", "id": first.output[0].id}
    ask(
        shared,
        input=[{"role": "user", "content": "hi"}, reference, {"role": "user", "content": "?"}],
    )
    assert prompt_of(shared) == f"user: hi\nassistant: {REPLY}\nuser: ?\nassistant: "
    for unknown in ("msg_1", f"msg_{'0' * 32}_0", first.output[0].id[:-1] + "7"):
        with pytest.raises(openai.NotFoundError):
            ask(shared, input=[{"type": "item_reference", "id": unknown}])


def test_sealed_thought_comes_back(start) -> None:
    source = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.content }};{% endfor %}"
    template = ChatTemplate({"default": source}, {})
    server = start(FakeClient(script=lambda request: b"<deep|42"), chat_template=template)
    assert ask(server).output[0].encrypted_content is None
    thought, text = ask(server, include=["reasoning.encrypted_content"], store=False).output
    sealed: Any = {
        "type": "reasoning", "summary": [], "encrypted_content": thought.encrypted_content,
    }  # fmt: skip
    user: Any = {"role": "user", "content": "hi"}
    ask(server, input=[user, sealed, text.model_dump(), user])
    assert prompt_of(server) == "|hi;deep|42;|hi;"


def test_logprobs(shared: RunningServer) -> None:
    options: dict[str, Any] = {
        "include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 3,
    }  # fmt: skip
    (part,) = ask(shared, **options).output[0].content
    assert [entry.token for entry in part.logprobs] == ["H", "e", "l"]
    assert [top.token for top in part.logprobs[0].top_logprobs] == ["H", "I"]
    events = events_of(shared.post("/v1/responses", **ASK, **options, stream=True).text)
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    assert [entry["token"] for e in deltas for entry in e["logprobs"]] == ["H", "e", "l"]
    assert ask(shared).output[0].content[0].logprobs == []


def test_logprobs_belong_to_the_text_they_are_of(serve) -> None:
    thinking = "<think>Twö cities.</think>\n\nLêt me see.\n"
    server = serve(thinking + CALLING.partition("see.\n")[2] + "Bÿe. ")
    options: dict[str, Any] = {"top_logprobs": 1, "tools": TOOLS}

    def spelled(logprobs: list[dict[str, Any]]) -> str:
        return bytes(byte for entry in logprobs for byte in entry["bytes"]).decode()

    texts = {"\n\nLêt me see.", "\nBÿe."}
    whole = server.post("/v1/responses", **ASK, **options).json()
    messages = [item for item in whole["output"] if item["type"] == "message"]
    assert [spelled(m["content"][0]["logprobs"]) for m in messages] == [
        m["content"][0]["text"] for m in messages
    ]
    assert {m["content"][0]["text"].rstrip() for m in messages} == texts
    events = events_of(server.post("/v1/responses", **ASK, **options, stream=True).text)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [spelled(event["logprobs"]) for event in deltas] == [e["delta"] for e in deltas]
    done = [event for event in events if event["type"] == "response.output_text.done"]
    assert [spelled(event["logprobs"]) for event in done] == [event["text"] for event in done]
    assert {event["text"].rstrip() for event in done} == texts


def test_sampling_reaches_the_engine(shared: RunningServer) -> None:
    extra = {"cache_salt": "salt", "seed": 3, "top_k": 7, "priority": 2, "stop": ["zzz"]}
    ask(shared, top_p=0.25, max_output_tokens=9, extra_body=extra)
    request = shared.client.requests[-1]
    sampling = request.sampling
    assert (sampling.top_p, sampling.top_k, sampling.seed) == (0.25, 7, 3)
    assert (sampling.max_tokens, sampling.stop) == (9, ["zzz"])
    assert (request.cache_salt, request.priority) == ("salt", 2)


def test_reasoning_effort_sets_the_template(start) -> None:
    source = "{{ enable_thinking }}{{ reasoning_effort }}|"
    server = start(FakeClient(), chat_template=ChatTemplate({"default": source}, {}))
    ask(server, reasoning={"effort": "low", "summary": "auto"})
    assert prompt_of(server) == "Truelow|"


def test_truncation_leaves_out_the_oldest_turns(start) -> None:
    server = start(FakeClient())
    turns: list[Any] = []
    for number in range(10):
        turns.append({"role": "user", "content": f"{number}" * 500})
        turns.append({"role": "assistant", "content": "yes"})
    last: Any = {"role": "user", "content": "last"}
    options: dict[str, Any] = {"instructions": "Be kind.", "input": [*turns, last]}
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        ask(server, **options)
    ask(server, **options, truncation="auto", max_output_tokens=500)
    prompt = prompt_of(server)
    assert prompt.startswith("system: Be kind.\nuser: 888")
    assert prompt.endswith("user: last\nassistant: ")
    ask(server, input="hi", truncation="auto")
    assert prompt_of(server) == "user: hi\nassistant: "
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        ask(server, input="x" * 3000, truncation="auto")


def test_more_tokens_than_the_context_has_left(start) -> None:
    server = start(FakeClient(script=lambda request: b"x" * 5000))
    response = ask(server, max_output_tokens=64_000)
    assert response.status == "incomplete"
    assert response.usage.output_tokens == 2048 - PROMPT_TOKENS


def test_count_of_input_tokens(serve) -> None:
    server = serve(CALLING)
    first = ask(server)
    same: dict[str, Any] = {
        "model": "fake", "input": "and?", "previous_response_id": first.id, "tools": TOOLS,
    }  # fmt: skip
    count = server.openai().responses.input_tokens.count(**same)
    assert count.object == "response.input_tokens"
    assert count.input_tokens == ask(server, **same).usage.input_tokens


def error_of(reply: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    error: dict[str, Any] = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == status
    return error


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input.0"),
        ({"input": [{}]}, "input.0.type"),
        ({"input": [{"type": "computer_call"}]}, "input.0.type"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user"}]}, "input.0.content"),
        ({"input": [{"role": "user", "content": [5]}]}, "input.0.content.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
         "input.0.content.0.type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
         "input.0.content.0.text"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]},
         "input"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input.0.call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input.0.output"),
        ({"tools": [{"name": "f"}]}, "tools.0.type"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [5]}]}, "tools.0.tools"),
        ({"tools": [{"type": "function"}]}, "tools.0.name"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "weather"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": 5}}, "tool_choice.type"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"not": {}}}}},
         "text.format"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"include": ["everything"]}, "include.0"),
        ({"truncation": "middle"}, "truncation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"metadata": {"a": 5}}, "metadata.a"),
        ({"background": True, "store": False}, "background"),
        ({"n": 2}, "n"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ],
)  # fmt: skip
def test_bad_field_is_named(shared: RunningServer, fields: dict[str, Any], param: str) -> None:
    assert error_of(shared.post("/v1/responses", **{**ASK, **fields}))["param"] == param


def test_what_is_unknown_is_not_found(shared: RunningServer) -> None:
    path = "/v1/responses/resp_x"
    for method, below in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items"),
                          ("GET", "?stream=true")):  # fmt: skip
        assert "resp_x" in error_of(shared.http.request(method, path + below), 404)["message"]
    chained = error_of(shared.post("/v1/responses", **ASK, previous_response_id="resp_x"), 404)
    assert chained["param"] == "previous_response_id"
    assert (
        error_of(shared.post("/v1/responses", **{**ASK, "model": "gpt"}), 404)["param"] == "model"
    )
    assert error_of(shared.http.get(path + "?starting_after=x"))["param"] == "starting_after"


def test_engine_death(start) -> None:
    server = start(FakeClient(die_after=3))
    events = events_of(server.post("/v1/responses", **ASK, stream=True).text)
    last = events[-1]
    assert last["type"] == "response.failed"
    assert "killed by a test" in last["response"]["error"]["message"]
    assert last["response"]["output"][0]["content"][0]["text"] == "Hel"
    assert error_of(server.post("/v1/responses", **ASK), 503)["type"] == "ServiceUnavailableError"


@pytest.mark.parametrize("streamed", [True, False])
def test_disconnect_aborts(start, streamed: bool) -> None:
    client = FakeClient(delay=0.02)
    server = start(client)
    body = json.dumps({**ASK, "stream": streamed}).encode()
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)) as connection:
        connection.sendall(
            b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        wait_until(lambda: len(client.running) == 1)
    wait_until(lambda: not client.running)
    assert len(client.aborted) == 1
    wait_until(lambda: server.http.get("/load").json() == {"server_load": 0})


def test_slow_reader_gets_all_of_the_text(start) -> None:
    """More than any socket buffer holds: the log waits, the engine does not."""
    text = "0123456789" * 190
    client = FakeClient(script=lambda request: text.encode())
    server = start(client)
    body = {**ASK, "stream": True, "tools": [{**TOOLS[0], "description": "x" * 2_000_000}]}
    with server.http.stream("POST", "/v1/responses", json=body) as reply:
        wait_until(lambda: bool(client.requests) and not client.running)
        lines = [line for line in reply.iter_lines() if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == text and events[-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    "form",
    [
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "integer"}}}},
        {"text": {"format": {"type": "json_object", "schema": {"type": "integer"}}}},
        {"structured_outputs": {"regex": "[0-9]+"}},
    ],
    ids=str,
)
def test_a_form_is_enforced(shared: RunningServer, form: dict[str, Any]) -> None:
    assert shared.post("/v1/responses", **ASK, **form).status_code == 200
    grammar = shared.client.requests[-1].grammar or ""
    assert ByteGrammars().accepts(grammar, "17")
    assert not ByteGrammars().accepts(grammar, "many")


def test_allowed_tools_leave_the_prompt_as_it_is(serve) -> None:
    """And with it the cached prefix: only the grammar knows."""
    server = serve(CALLING)
    tools = [*TOOLS, {**TOOLS[0], "name": "clock"}]
    allowed: Any = {
        "type": "allowed_tools", "mode": "required",
        "tools": [{"type": "function", "name": "weather"}],
    }  # fmt: skip
    prompts = []
    for choice in ("auto", allowed):
        ask(server, tools=tools, tool_choice=choice)
        prompts.append(prompt_of(server))
    assert prompts[0] == prompts[1] and '"clock"' in prompts[0]
    grammar = server.client.requests[-1].grammar or ""
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    assert ByteGrammars().accepts(grammar, call)
    assert not ByteGrammars().accepts(grammar, call.replace("weather", "clock"))


def test_what_is_not_enforced_is_told(serve) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "not": {}}}}
    tools = [{**TOOLS[0], "parameters": schema}]
    reply = serve(CALLING).post("/v1/responses", **ASK, tools=tools)
    assert "not" in reply.headers["Pagoda-Not-Enforced"]
