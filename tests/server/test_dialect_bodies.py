"""Whatever stands in whichever place of a body: a reply, or an error that says what is wrong."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.conftest import RunningServer
from tests.server.test_messages import TOOLS as MESSAGES_TOOLS
from tests.server.test_responses import TOOLS as RESPONSES_TOOLS
from tests.server.test_tools import TOOLS as CHAT_TOOLS

JUNK: list[Any] = [None, True, 10**30, "", "x", [], [[]], {}, {"type": "text"}]
MESSAGES: dict[str, Any] = {
    "model": "fake",
    "max_tokens": 2000,
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "", "signature": "s"},
                {"type": "redacted_thinking", "data": "d"},
                {"type": "tool_use", "id": "1", "name": "weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "is_error": True,
                 "content": [{"type": "text", "text": "r"}]},
                {"type": "text", "text": "b"},
            ],
        },
        {"role": "system", "content": "t"},
        {"role": "assistant", "content": "begun"},
    ],
    "tools": MESSAGES_TOOLS,
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    "output_config": {"effort": "low"},
    "stop_sequences": ["z"],
    "chat_template_kwargs": {"a": 1},
    "metadata": {"user_id": "u"},
    "temperature": 0.5,
}  # fmt: skip
RESPONSES: dict[str, Any] = {
    "model": "fake",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e",
         "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "1", "name": "f", "arguments": "{"},
        {"type": "function_call_output", "call_id": "1", "output": "r"},
        {"type": "message", "role": "developer", "content": "d"},
    ],
    "instructions": "i",
    "tools": RESPONSES_TOOLS,
    "tool_choice": {"type": "allowed_tools", "mode": "auto",
                    "tools": [{"type": "function", "name": "weather"}]},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 1,
    "truncation": "auto",
    "max_output_tokens": 3,
    "metadata": {"a": "b"},
    "stream_options": {"include_obfuscation": False},
}  # fmt: skip
CHAT: dict[str, Any] = {
    "model": "fake",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": None, "reasoning": "t", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
        ]},
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    ],
    "tools": CHAT_TOOLS,
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {
        "mode": "auto", "tools": [{"type": "function", "function": {"name": "weather"}}],
    }},
    "stop": ["z"],
    "logit_bias": {"1": 1},
    "max_tokens": 3,
}  # fmt: skip

OLLAMA_CHAT: dict[str, Any] = {
    "model": "fake",
    "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "thinking": "t", "tool_calls": [
            {"function": {"name": "weather", "arguments": {"city": "x"}}},
        ]},
        {"role": "tool", "tool_name": "weather", "content": "r"},
    ],
    "tools": CHAT_TOOLS,
    "options": {"num_predict": 3, "stop": ["z"], "temperature": 0.5, "mirostat_tau": 1},
    "keep_alive": "5m",
    "think": True,
    "format": {"type": "object", "properties": {}},
    "logprobs": True,
    "top_logprobs": 1,
    "stream": False,
}  # fmt: skip
OLLAMA_GENERATE: dict[str, Any] = {
    "model": "fake",
    "prompt": "a",
    "system": "s",
    "context": [97, 98],
    "options": {"num_predict": 3, "seed": 1},
    "raw": False,
    "stream": False,
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in children:
        yield (*path, key)
        if isinstance(child, dict | list):
            yield from places(child, (*path, key))


def with_junk(body: dict[str, Any], path: tuple[Any, ...], junk: Any) -> dict[str, Any]:
    changed = copy.deepcopy(body)
    target: Any = changed
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = junk
    return changed


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/messages", MESSAGES),
        ("/v1/responses", {**RESPONSES, "store": False}),
        ("/api/chat", OLLAMA_CHAT),
        ("/api/generate", OLLAMA_GENERATE),
    ],
)
def test_junk_in_any_place(shared: RunningServer, route: str, body: dict[str, Any]) -> None:
    assert shared.post(route, **body).status_code == 200
    for path in places(body):
        for junk in JUNK:
            reply = shared.post(route, **with_junk(body, path, junk))
            assert reply.status_code in (200, 400, 404), (path, junk, reply.text)
            if reply.status_code != 200:
                error = reply.json()["error"]
                assert len(error if isinstance(error, str) else error["message"]) > 10
