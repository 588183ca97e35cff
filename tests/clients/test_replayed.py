"""Requests in the shapes in which editors and chat pages send them, and the replies in which they
look for what they need. Recorded shapes, with words of our own."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest

from pagoda.config.server import ServerConfig
from pagoda.engine.served.model import ServedModel
from tests.server import conftest
from tests.server.conftest import RunningServer
from tests.server.fakes import FakeClient, served_model

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
FUNCTION = {
    "type": "function",
    "function": {"name": "weather", "description": "Tells it.", "parameters": CITY},
}
KEY = "sk-any"


@pytest.fixture
def server(serve) -> RunningServer:
    return serve("Let me see.\n" + CALL)


def chunks(reply: httpx.Response) -> Iterator[dict[str, Any]]:
    assert reply.status_code == 200, reply.text
    lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    yield from (json.loads(line) for line in lines if line != "[DONE]")


def called(reply: httpx.Response) -> tuple[str, Any]:
    """Name and arguments of the call in a chat's stream."""
    name, arguments = "", ""
    for chunk in chunks(reply):
        for choice in chunk["choices"]:
            for call in choice["delta"].get("tool_calls", ()):
                name += call["function"].get("name", "")
                arguments += call["function"]["arguments"]
    return name, json.loads(arguments)


def test_claude_code(server: RunningServer) -> None:
    headers = {
        "Authorization": f"Bearer {KEY}", "x-api-key": KEY, "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
        "x-claude-code-session-id": "0b5c", "x-claude-code-agent-id": "1", "x-app": "cli",
        "x-stainless-lang": "js", "user-agent": "claude-cli/2.1.0 (external, cli)",
    }  # fmt: skip
    short = {"type": "ephemeral", "ttl": "1h"}
    body = {
        "model": "fake",
        "max_tokens": 512,
        "stream": True,
        "temperature": 1,
        "metadata": {"user_id": "user_1_account__session_2"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1a2b;"},
            {"type": "text", "text": "You write code.", "cache_control": short},
        ],
        "tools": [
            {"name": "weather", "description": "Tells it.", "input_schema": CITY, "strict": True,
             "eager_input_streaming": True, "cache_control": short},
            {"name": "rare", "input_schema": {"type": "object"}, "defer_loading": True},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "<reminder>Be brief.</reminder>"},
                {"type": "text", "text": "How is Paris?", "cache_control": short}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Look.", "signature": "EqQB"},
                {"type": "tool_use", "id": "toolu_1", "name": "weather",
                 "input": {"city": "Paris"}, "caller": {"type": "direct"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": False,
                 "content": [{"type": "text", "text": "sunny"},
                             {"type": "tool_reference", "tool_name": "rare"}],
                 "cache_control": short}]},
            {"role": "system", "content": [
                {"type": "text", "text": "The date is new.", "cache_control": short}]},
            {"role": "user", "content": "And now?"},
        ],
    }  # fmt: skip
    reply = server.http.post("/v1/messages?beta=true", headers=headers, json=body)
    events = list(chunks(reply))
    kinds = [event["type"] for event in events]
    assert kinds.count("message_start") == 1 and kinds[-1] == "message_stop"
    assert events[0]["message"]["usage"]["input_tokens"] > 0
    pieces = [event["delta"].get("partial_json", "") for event in events if "delta" in event
              and event["delta"].get("type") == "input_json_delta"]  # fmt: skip
    assert json.loads("".join(pieces)) == {"city": "Paris"} and len(pieces) > 3
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert json.loads(reply.headers["pagoda-ignored"]) == [
        "web_search_20250305", "context_management",
    ]  # fmt: skip
    counted = {key: body[key] for key in ("model", "system", "tools", "messages")}
    reply = server.http.post("/v1/messages/count_tokens?beta=true", headers=headers, json=counted)
    assert reply.status_code == 200 and reply.json()["input_tokens"] > 0


def test_claude_code_lists_an_alias(monkeypatch, start) -> None:
    """It shows names that contain claude alone: `--alias claude-local` is one."""
    alias = ("fake", "claude-local")
    monkeypatch.setattr(conftest, "served_model", partial(served_named, alias))
    server = start(FakeClient())
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    listed = server.http.get("/v1/models?limit=1000", headers=headers).json()["data"]
    (name,) = [model["id"] for model in listed if "claude" in model["id"]]
    body = {"model": name, "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    assert server.http.post("/v1/messages", headers=headers, json=body).json()["model"] == name


def served_named(names: tuple[str, str], client: FakeClient, **text: Any) -> ServedModel:
    return replace(served_model(client, **text), names=names)


def test_cline(server: RunningServer) -> None:
    """Reads the length of the context from the list of models."""
    (model, *_) = server.http.get("/v1/models").json()["data"]
    assert model["max_model_len"] == 2048
    body = {
        "model": model["id"],
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": None,
        "reasoning_effort": None,
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [{**FUNCTION, "function": {**FUNCTION["function"], "strict": False}}],
        "messages": [
            {"role": "system", "content": "You write code."},
            {"role": "user", "content": [{"type": "text", "text": "How is Paris?"}]},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "call_1", "type": "function",
                 "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}]},
            {"role": "tool", "tool_call_id": "call_1",
             "content": [{"type": "text", "text": "sunny"}]},
        ],
    }  # fmt: skip
    reply = server.http.post("/v1/chat/completions", json=body)
    assert called(reply) == ("weather", {"city": "Paris"})
    *_, last = chunks(reply)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] > 0


def test_copilot(server: RunningServer) -> None:
    """VS Code's models of one's own, by a custom endpoint."""
    body = {
        "model": "fake",
        "messages": [
            {"role": "system", "content": "You write code."},
            {"role": "user", "content": "How is Paris?", "copilot_cache_control": {"type": "x"}},
        ],
        "tools": [FUNCTION],
        "tool_choice": "auto",
        "n": 1,
        "top_p": 1,
        "temperature": 0.1,
        "max_tokens": 1024,
        "stream": True,
        "stream_options": {"include_usage": True},
        "intent": False,
    }
    headers = {"Authorization": f"Bearer {KEY}", "User-Agent": "GitHubCopilotChat/0.40.0"}
    reply = server.http.post("/v1/chat/completions", headers=headers, json=body)
    assert called(reply) == ("weather", {"city": "Paris"})


def test_open_webui(serve) -> None:
    server = serve("Sunny.")
    assert server.http.get("/v1/models").json()["data"][0]["object"] == "model"
    body = {
        "stream": True,
        "model": "fake",
        "messages": [{"role": "user", "content": "How is Paris?"}],
        "stream_options": {"include_usage": True},
        "metadata": {"chat_id": "1", "message_id": "2"},
        "user": "someone",
    }
    reply = server.http.post("/v1/chat/completions", json=body)
    told = list(chunks(reply))
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in told if c["choices"])
    assert text == "Sunny."
    title = {"model": "fake", "messages": body["messages"], "stream": False,
             "max_completion_tokens": 1000}  # fmt: skip
    whole = server.http.post("/v1/chat/completions", json=title).json()
    assert whole["choices"][0]["message"]["content"] == "Sunny."


def test_continue(server: RunningServer) -> None:
    """Chats with tools, and completes code by /v1/completions where it writes the tokens itself."""
    body = {
        "model": "fake",
        "max_tokens": 256,
        "stream": True,
        "stop": ["\n\n\n"],
        "tools": [FUNCTION],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "How is Paris?"}]}],
    }
    assert called(server.http.post("/v1/chat/completions", json=body))[0] == "weather"
    body = {
        "model": "fake",
        "prompt": "<|fim_prefix|>def f(<|fim_suffix|>): pass<|fim_middle|>",
        "max_tokens": 16,
        "temperature": 0.01,
        "stream": True,
        "stop": ["<|fim_prefix|>", "<|endoftext|>", "/src/"],
        "raw": True,
        "keep_alive": 1800,
    }
    told = list(chunks(server.http.post("/v1/completions", json=body)))
    assert "".join(chunk["choices"][0]["text"] for chunk in told)


def test_keys_come_in_either_header(start) -> None:
    server = start(FakeClient(), ServerConfig(api_key=(KEY,), disable_uvicorn_access_log=True))
    assert server.http.get("/v1/models").status_code == 401
    for headers in ({"Authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}):
        assert server.http.get("/v1/models?limit=1000", headers=headers).status_code == 200
