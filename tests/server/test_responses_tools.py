"""Tools of any type in /v1/responses, and what agents send around them."""

import json
from typing import Any

import pytest

from pagoda.server.responses.tools import CustomInput, custom_arguments
from tests.server.conftest import RunningServer
from tests.server.fakes import FakeClient
from tests.server.test_responses import ASK, error_of, events_of, prompt_of

PATCH = '*** Begin Patch\n+say("hallo 你好 \U0001f600")\n*** End Patch'
FUNCTION = {"type": "function", "name": "run", "parameters": {"type": "object"}}
CUSTOM = {
    "type": "custom", "name": "apply_patch", "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}  # fmt: skip
NAMESPACE = {
    "type": "namespace", "name": "agents", "description": "Subagents.",
    "tools": [{"type": "function", "name": "spawn", "parameters": {"type": "object"}}, CUSTOM],
}  # fmt: skip
HOSTED = [
    {"type": "web_search", "external_web_access": True},
    {"type": "image_generation"},
    {"type": "tool_search", "execution": "client"},
]


def called(name: str, arguments: Any) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def test_tools_that_openai_runs_are_left_out_and_named(serve) -> None:
    server = serve("Hm.")
    reply = server.post("/v1/responses", **ASK, tools=[*HOSTED, FUNCTION])
    assert reply.status_code == 200
    ignored = json.loads(reply.headers["pagoda-ignored"])
    assert ignored == ["web_search", "image_generation", "tool_search"]
    assert '"run"' in prompt_of(server) and "web_search" not in prompt_of(server)
    # The reply repeats what was asked, as OpenAI's does.
    assert reply.json()["tools"] == [*HOSTED, FUNCTION]
    choice = {"type": "web_search"}
    reply = server.post("/v1/responses", **ASK, tools=HOSTED, tool_choice=choice)
    assert json.loads(reply.headers["pagoda-ignored"]) == ignored
    assert "pagoda-ignored" not in server.post("/v1/responses", **ASK).headers


def test_a_namespace_is_flattened(serve) -> None:
    server = serve(called("agents__spawn", {"task": "x"}))
    (call,) = server.openai().responses.create(**ASK, tools=[NAMESPACE]).output
    assert (call.type, call.name, call.namespace) == ("function_call", "spawn", "agents")
    assert json.loads(call.arguments) == {"task": "x"}
    assert '"agents__spawn"' in prompt_of(server)
    # It comes back so, and is what the model wrote.
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    user = {"role": "user", "content": "hi"}
    history = [user, call.to_dict(), result]
    server.openai().responses.create(model="fake", input=history, tools=[NAMESPACE])
    assert '{"name": "agents__spawn", "arguments": {"task": "x"}}' in prompt_of(server)


def test_a_custom_tool_is_given_a_text(serve) -> None:
    server = serve(called("apply_patch", {"input": PATCH}))
    (call,) = server.openai().responses.create(**ASK, tools=[CUSTOM]).output
    assert (call.type, call.name, call.input) == ("custom_tool_call", "apply_patch", PATCH)
    assert "Edits files." in prompt_of(server) and "start: /.+/" in prompt_of(server)
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}
    history: list[Any] = [{"role": "user", "content": "hi"}, call.to_dict(), result]
    server.openai().responses.create(model="fake", input=history, tools=[CUSTOM])
    prompt = prompt_of(server)
    assert f'"arguments": {custom_arguments(PATCH)}' in prompt
    assert "<tool_response>\ndone" in prompt


def test_the_text_of_a_custom_tool_is_streamed(serve) -> None:
    server = serve(called("apply_patch", {"input": PATCH}))
    reply = server.post("/v1/responses", **ASK, tools=[CUSTOM], stream=True)
    events = events_of(reply.text)
    kind = "response.custom_tool_call_input."
    deltas = [event["delta"] for event in events if event["type"] == kind + "delta"]
    assert "".join(deltas) == PATCH and len(deltas) > len(PATCH) // 2
    (done,) = [event["input"] for event in events if event["type"] == kind + "done"]
    assert done == PATCH == events[-1]["response"]["output"][0]["input"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    with server.openai().responses.stream(**ASK, tools=[CUSTOM]) as stream:
        assert [event.type for event in stream][-1] == "response.completed"
        assert stream.get_final_response().output[0].input == PATCH


def test_a_custom_tool_within_a_namespace(serve) -> None:
    server = serve(called("agents__apply_patch", {"input": "x"}))
    (call,) = server.openai().responses.create(**ASK, tools=[NAMESPACE]).output
    assert (call.type, call.namespace, call.name) == ("custom_tool_call", "agents", "apply_patch")


def test_arguments_of_another_form_are_the_text(serve) -> None:
    server = serve(called("apply_patch", {"patch": "x"}))
    (call,) = server.openai().responses.create(**ASK, tools=[CUSTOM]).output
    assert call.input == '{"patch": "x"}'


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("text", ["", PATCH, '\\ud83d "\\" \t\n', "\x00\x1f/\\u"])
def test_any_cut_gives_the_same_text(size: int, text: str) -> None:
    for arguments in (custom_arguments(text), json.dumps({"input": text})):
        reader = CustomInput()
        cuts = [arguments[i : i + size] for i in range(0, len(arguments), size)]
        assert "".join(map(reader.feed, cuts)) + reader.finish() == text


def test_half_a_character_is_replaced() -> None:
    reader = CustomInput()
    assert "".join(map(reader.feed, '{"input":"\\ud83d x\\udc00"}')) == "\ufffd x\ufffd"


@pytest.mark.parametrize("kind", ["function", "custom"])
def test_a_choice_by_name_reaches_the_tools(serve, kind: str) -> None:
    server = serve(called("run", {}))
    tools = [FUNCTION, CUSTOM]
    reply = server.post(
        "/v1/responses", **ASK, tools=tools, tool_choice={"type": kind, "name": "nothing"}
    )
    assert "names 'nothing'" in error_of(reply)["message"]
    allowed = {"type": "allowed_tools", "mode": "auto",
               "tools": [{"type": "custom", "name": "apply_patch"}, *HOSTED]}  # fmt: skip
    assert server.post("/v1/responses", **ASK, tools=tools, tool_choice=allowed).status_code == 200


def test_items_of_hosted_tools_are_left_out_and_named(shared: RunningServer) -> None:
    items = [
        {"role": "user", "content": "a"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}},
        {"type": "image_generation_call", "id": "ig_1", "result": "AAAA"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA-foreign"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    reply = shared.post("/v1/responses", model="fake", input=items)
    assert json.loads(reply.headers["pagoda-ignored"]) == [
        "web_search_call", "image_generation_call",
    ]  # fmt: skip
    assert prompt_of(shared) == "user: a\nassistant: b\nuser: c\nassistant: "


def test_sealed_thought_of_others_alone_is_no_turn(shared: RunningServer) -> None:
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA", "content": None}
    user = {"role": "user", "content": "a"}
    assert shared.post("/v1/responses", model="fake", input=[user, sealed]).status_code == 200
    assert prompt_of(shared) == "user: a\nassistant: "


def test_a_probe_is_answered(shared: RunningServer) -> None:
    reply = shared.post("/v1/responses", model="fake", input=[], max_output_tokens=1)
    assert reply.status_code == 200 and reply.json()["status"] == "incomplete"
    reply = shared.post("/v1/responses", model="fake", input=[], instructions="Be kind.")
    assert prompt_of(shared) == "system: Be kind.\nuser: \nassistant: "
    unknown = shared.post("/v1/responses", **ASK, previous_response_id="resp_unknown")
    assert error_of(unknown, 404)["param"] == "previous_response_id"


def test_a_picture_in_a_result_leaves_a_note_on_a_text_model(serve) -> None:
    server = serve("I see.")
    call = {"type": "function_call", "call_id": "c", "name": "run", "arguments": "{}"}
    shown = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    result = {"type": "function_call_output", "call_id": "c", "output": [shown]}
    items = [{"role": "user", "content": "hi"}, call, result]
    reply = server.post("/v1/responses", model="fake", input=items, tools=[FUNCTION])
    assert json.loads(reply.headers["pagoda-ignored"]) == ["image"]
    assert "[image] (This model takes no pictures" in prompt_of(server)


@pytest.mark.parametrize("path", ["/v1/models", "/models?client_version=0.169.0"])
def test_models_as_codex_lists_them(start, path: str) -> None:
    server = start(FakeClient())
    model, alias = server.http.get(path).json()["models"]
    # All that version 0.169 demands; one that is missing costs the whole list, silently.
    assert {
        "slug", "display_name", "supported_reasoning_levels", "shell_type", "visibility",
        "supported_in_api", "priority", "base_instructions", "supports_reasoning_summaries",
        "support_verbosity", "truncation_policy", "supports_parallel_tool_calls",
        "experimental_supported_tools",
    } <= set(model)  # fmt: skip
    assert (model["slug"], alias["slug"]) == ("fake", "fake-alias")
    assert model["context_window"] == 2048 and model["input_modalities"] == ["text"]
    assert model["truncation_policy"] == {"mode": "tokens", "limit": 10_000}
