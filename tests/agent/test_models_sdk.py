"""Our requests and replies beside the official SDKs': their types check what we send, their
clients read what the scripted server says, and read the same as we do."""

import json
from collections.abc import Mapping

import pytest
from pydantic import TypeAdapter

from pagoda_agent.dialects.anthropic import VERSIONS, Anthropic
from pagoda_agent.dialects.openai import OpenAI
from pagoda_agent.dialects.qwen import Qwen
from pagoda_agent.models.dialogue import Message, Picture, Reply, ToolCall, Usage
from pagoda_agent.models.endpoint import Endpoint
from pagoda_agent.models.registry import make_model
from tests.agent.dialect_cases import FULL, SCREEN
from tests.agent.model_server import ModelServer, Step

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

SHOT = Picture(b"\xff\xd8 no real picture", "image/jpeg", SCREEN)
ARGUMENTS = '{"action": "type", "text": "a\u2028é\\n"}'
TWO = (("call-a", "computer_use", ARGUMENTS), ("call-b", "computer_use", '{"action": "wait"}'))


def forced(value):
    """With everything read: pydantic checks an Iterable only when it is gone through."""
    if isinstance(value, Mapping):
        return {name: forced(item) for name, item in value.items()}
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return [forced(item) for item in value]


def assert_fits(kind, body):
    """The SDK's type knows every field of the body and finds nothing wrong."""
    assert forced(TypeAdapter(kind).validate_python(body)) == body


def conversation(dialect, calls, opaque=None, consented=False):
    """Two steps: a reply with calls, its results with the next picture, a hint."""
    results = dialect.result([call.id for call in calls], ["done"] * len(calls), consented)
    last = results[-1]
    shown = Message(
        last.role, last.text, (SHOT,), tool_call_id=last.tool_call_id, consented=consented
    )
    return [
        Message("system", "Instructions."),
        Message("user", "Your task", (SHOT,)),
        Message("assistant", "I act.", tool_calls=tuple(calls), opaque=opaque),
        *results[:-1],
        shown,
        Message("user", "The user says: go on."),
    ]


async def exchange(api, messages, tools, step, base="/v1", **how):
    """(our reply, the request)."""
    with ModelServer([step]) as server:
        model = make_model(api, Endpoint(server.url + base, "scripted", **how))
        reply = await model.complete(messages, tools)
        await model.close()
        return reply, server.requests[0]


async def test_chat_requests():
    from openai.types.chat import completion_create_params as params

    dialect = Qwen(as_tools=True)
    calls = [ToolCall(*call) for call in TWO]
    messages = conversation(dialect, calls)
    tools = dialect.tools(SCREEN, FULL)
    how = {"extra": {"temperature": 0.0}, "max_tokens": 77}
    _, request = await exchange("openai", messages, tools, Step("Hi."), **how)
    assert request.body["max_tokens"] == 77
    assert_fits(params.CompletionCreateParamsStreaming, request.body)
    assert request.body["temperature"] == 0
    roles = [message["role"] for message in request.body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user"]
    last = request.body["messages"][-1]["content"]
    assert [part["type"] for part in last] == ["text", "image_url"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_anthropic_requests(version):
    from anthropic.types.beta import message_create_params as params

    dialect = Anthropic(version)
    calls = [ToolCall("call-a", "computer", '{"action": "screenshot"}')]
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    used = {"type": "tool_use", "id": "call-a", "name": "computer", "input": {"action": "wait"}}
    for opaque in (None, [thought, used]):
        messages = conversation(dialect, calls, opaque)
        tools = dialect.tools(SCREEN, FULL)
        _, request = await exchange("anthropic", messages, tools, Step("Hi."))
        assert_fits(params.MessageCreateParamsStreaming, request.body)
        roles = [message["role"] for message in request.body["messages"]]
        assert roles == ["user", "assistant", "user"]
        result, hint = request.body["messages"][2]["content"]
        assert result["tool_use_id"] == "call-a"
        assert [part["type"] for part in result["content"]] == ["text", "image"]
        # Kept until the end of the instructions, and until the last word.
        assert request.raw.count(b"cache_control") == 2
        assert "cache_control" in request.body["system"][0] and "cache_control" in hint
        betas = {"20241022": "computer-use-2024-10-22", "20250124": "computer-use-2025-01-24",
                 "20251124": "computer-use-2025-11-24"}  # fmt: skip
        assert request.headers.get("anthropic-beta") == betas.get(version)
        assert request.headers["anthropic-version"] == "2023-06-01"


CHECK = {"id": "sc_1", "code": "malicious_instructions", "message": "Careful."}


def computer_call(checks=()):
    """(the API's item, the same as a tool call)."""
    actions = [{"type": "click", "button": "left", "x": 5, "y": 6}]
    item = {
        "type": "computer_call",
        "id": "cu_1",
        "call_id": "call-a",
        "status": "completed",
        "actions": actions,
        "pending_safety_checks": list(checks),
    }
    given = {"actions": actions, "pending_safety_checks": list(checks)}
    return item, ToolCall("call-a", "computer", json.dumps(given))


@pytest.mark.parametrize("preview", [False, True])
async def test_responses_requests(preview):
    from openai.types.responses import response_create_params as params

    dialect = OpenAI(preview)
    item, call = computer_call()
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "eA=="}
    messages = conversation(dialect, [call], [thought, item])
    _, request = await exchange("responses", messages, dialect.tools(SCREEN, FULL), Step("Hi."))
    assert_fits(params.ResponseCreateParamsStreaming, request.body)
    kinds = [entry.get("type", entry.get("role")) for entry in request.body["input"]]
    assert kinds == ["user", "reasoning", "computer_call", "computer_call_output", "user", "user"]
    assert "acknowledged_safety_checks" not in request.said()
    assert request.body["store"] is False


@pytest.mark.parametrize("consented", [False, True])
async def test_safety_checks_are_acknowledged_only_by_the_user(consented):
    from openai.types.responses import response_create_params as params

    item, call = computer_call([CHECK])
    messages = conversation(OpenAI(), [call], [item], consented)
    _, request = await exchange("responses", messages, [{"type": "computer"}], Step("Hi."))
    assert_fits(params.ResponseCreateParamsStreaming, request.body)
    outputs = [e for e in request.body["input"] if e.get("type") == "computer_call_output"]
    if consented:
        assert outputs[0]["acknowledged_safety_checks"] == [CHECK]
    else:
        assert outputs == []
        assert "acknowledged" not in request.said() and "computer_call" not in request.said()
        assert request.pictures == 2


STEPS = [
    Step("Hello\u2028 wörld, more than one piece of text."),
    Step("", TWO, usage=None),
    Step("I think.", (TWO[0],), "Thoughts first."),
    Step("cut", finish="length"),
]


def as_seen(reply: Reply):
    return (
        reply.text,
        [(call.id, call.name, json.loads(call.arguments)) for call in reply.tool_calls],
        reply.reasoning,
        reply.finish_reason == "length",
    )


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("step", STEPS)
async def test_chat_replies(step, plain):
    step = Step(step.text, step.tool_calls, step.reasoning, step.finish, step.usage, plain=plain)
    ours, _ = await exchange("openai", [Message("user", "Hi")], (), step)
    with ModelServer([step]) as server:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)
        asked = client.chat.completions.stream if not plain else client.chat.completions.create
        what = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        if plain:
            theirs = await asked(**what)
        else:
            options = {"include_usage": True}
            # Its stream helper turns `length` into an exception; chunks are gathered here.
            theirs = None
            if step.finish == "stop":
                async with asked(**what, stream_options=options) as stream:
                    theirs = await stream.get_final_completion()
        await client.close()
    if theirs is None:
        assert as_seen(ours) == ("cut", [], "", True)
        return
    choice = theirs.choices[0]
    calls = choice.message.tool_calls or []
    assert as_seen(ours) == (
        choice.message.content or "",
        [(c.id, c.function.name, json.loads(c.function.arguments)) for c in calls],
        step.reasoning,
        choice.finish_reason == "length",
    )
    if theirs.usage is None:
        assert ours.usage == Usage()
    else:
        cached = theirs.usage.prompt_tokens_details.cached_tokens
        assert ours.usage == Usage(
            theirs.usage.prompt_tokens, cached, theirs.usage.completion_tokens
        )


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("step", STEPS)
async def test_anthropic_replies(step, plain):
    step = Step(step.text, step.tool_calls, step.reasoning, step.finish, step.usage, plain=plain)
    ours, _ = await exchange("anthropic", [Message("user", "Hi")], (), step)
    with ModelServer([step]) as server:
        client = anthropic.AsyncAnthropic(base_url=server.url, api_key="k", max_retries=0)
        what = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
        if plain:
            theirs = await client.beta.messages.create(**what)
        else:
            async with client.beta.messages.stream(**what) as stream:
                theirs = await stream.get_final_message()
        await client.close()
    assert as_seen(ours) == (
        "".join(block.text for block in theirs.content if block.type == "text"),
        [(b.id, b.name, b.input) for b in theirs.content if b.type == "tool_use"],
        "".join(block.thinking for block in theirs.content if block.type == "thinking"),
        theirs.stop_reason == "max_tokens",
    )
    # What goes back is what came, signatures too.
    dumped = [block.model_dump(exclude_none=True) for block in theirs.content]
    assert (ours.opaque or []) == dumped
    usage = theirs.usage
    cached = usage.cache_read_input_tokens or 0
    assert ours.usage == Usage(usage.input_tokens + cached, cached, usage.output_tokens)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("actions", ["actions", "action"])
async def test_responses_replies(actions, plain):
    click = {"type": "click", "button": "left", "x": 5, "y": 6}
    given = {actions: [click] if actions == "actions" else click, "pending_safety_checks": [CHECK]}
    call = ("call-a", "computer", json.dumps(given))
    step = Step("I click.\u2028", (call,), "Hm.", plain=plain)
    ours, _ = await exchange("responses", [Message("user", "Hi")], (), step)
    with ModelServer([step]) as server:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)
        if plain:
            theirs = await client.responses.create(model="m", input="Hi")
        else:
            async with client.responses.stream(model="m", input="Hi") as stream:
                theirs = await stream.get_final_response()
        await client.close()
    (item,) = [item for item in theirs.output if item.type == "computer_call"]
    (found,) = ours.tool_calls
    assert (found.id, ours.text, ours.reasoning) == (item.call_id, theirs.output_text, "Hm.")
    listed = item.actions if actions == "actions" else [item.action]
    assert json.loads(found.arguments) == {
        "actions": [action.model_dump(exclude_none=True) for action in listed],
        "pending_safety_checks": [check.model_dump() for check in item.pending_safety_checks],
    }
    usage = theirs.usage
    cached = usage.input_tokens_details.cached_tokens
    assert ours.usage == Usage(usage.input_tokens, cached, usage.output_tokens)
    parsed = OpenAI().parse(ours, SCREEN)
    assert parsed.warnings == ("Safety check by the model's provider: Careful.",)


@pytest.mark.parametrize("plain", [False, True])
async def test_dashscope(plain):
    # There is no SDK here to hold it against; its forms are those of the API's documentation.
    messages = [Message("system", "Instructions."), Message("user", "Look", (SHOT,))]
    step = Step("# see\nsleep 1", plain=plain)
    reply, request = await exchange(
        "dashscope", messages, (), step, "/api/v1", extra={"top_p": 0.1}
    )
    assert (reply.text, reply.usage) == ("# see\nsleep 1", Usage(100, 40, 10))
    sent = request.body["input"]["messages"]
    assert sent[0] == {"role": "system", "content": [{"text": "Instructions."}]}
    text, image = sent[1]["content"]
    assert text == {"text": "Look"}
    assert image["image"].startswith("data:image/jpeg;base64,")
    assert request.body["parameters"]["top_p"] == 0.1
    assert request.headers["x-dashscope-sse"] == "enable"
