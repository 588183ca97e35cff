"""What agents send to /v1/messages for tools and files that only Anthropic's servers have."""

import json
from typing import Any

import pytest

from pagoda.text.template.chat import ChatTemplate
from tests.server.conftest import RunningServer
from tests.server.fakes import ByteTokenizer, FakeClient
from tests.server.test_messages import USER
from tests.server.test_responses import prompt_of
from tests.unit.text.templates import QWEN_TOOLS

PIXEL = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
TOOL = {"name": "weather", "input_schema": {"type": "object"}, "strict": True}


def send(server: RunningServer, **body: Any) -> tuple[list[str], str]:
    """What was ignored, and the prompt."""
    asked = {"model": "fake", "max_tokens": 9, "messages": USER, **body}
    reply = server.post("/v1/messages?beta=true", **asked)
    assert reply.status_code == 200, reply.text
    counted = server.post("/v1/messages/count_tokens", **asked)
    usage = reply.json()["usage"]
    assert counted.status_code == 200
    assert counted.json()["input_tokens"] == (
        usage["input_tokens"] + usage["cache_read_input_tokens"]
    )
    return json.loads(reply.headers.get("pagoda-ignored", "[]")), prompt_of(server)


def said(*blocks: dict[str, Any], role: str = "user") -> list[dict[str, Any]]:
    return [{"role": role, "content": list(blocks)}, *USER]


def test_tools_that_anthropic_runs_are_left_out_and_named(serve) -> None:
    server = serve("Hm.")
    hosted = [
        {"type": "web_search_20260209", "name": "web_search", "max_uses": 5},
        {"type": "code_execution_20260120", "name": "code_execution"},
        {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"},
        {"type": "bash_20250124", "name": "bash"},
    ]
    ours = [{**TOOL, "defer_loading": True, "cache_control": {"type": "ephemeral"}}]
    ignored, prompt = send(server, tools=[*hosted, *ours])
    assert ignored == [tool["type"] for tool in hosted]
    assert '"weather"' in prompt and "web_search" not in prompt
    choice = {"type": "tool", "name": "web_search"}
    assert send(server, tools=hosted, tool_choice=choice)[0] == ignored
    assert send(server, tools=hosted, tool_choice={"type": "any"})[0] == ignored
    assert send(server, tools=ours) == ([], prompt)


def test_blocks_of_such_tools_are_left_out_and_named(shared: RunningServer) -> None:
    used = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    text = {"type": "text", "text": "Found it."}
    ignored, prompt = send(shared, messages=[*USER, *said(used, found, text, role="assistant")])
    assert ignored == ["server_tool_use", "web_search_tool_result"]
    assert prompt == "user: hi\nassistant: Found it.\nuser: hi\nassistant: "


def test_the_text_of_documents_is_read(shared: RunningServer) -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "Rain falls."}
    inner = {"type": "content", "content": [{"type": "text", "text": "Snow, too."}]}
    ignored, prompt = send(
        shared,
        messages=said(
            {"type": "document", "title": "Weather", "context": "Of 2026", "source": plain,
             "citations": {"enabled": True}},
            {"type": "document", "source": inner},
            {"type": "search_result", "title": "Hail", "source": "https://hail.example",
             "content": [{"type": "text", "text": "It hurts."}]},
        ),
    )  # fmt: skip
    assert ignored == []
    assert prompt.startswith(
        "user: Weather\nOf 2026\nRain falls.\nSnow, too.\nHail\nhttps://hail.example\nIt hurts.\n"
    )


def test_a_document_that_cannot_be_read_leaves_a_note(shared: RunningServer) -> None:
    for source in (PDF, {"type": "file", "file_id": "f"}, {"type": "url", "url": "http://x"}):
        ignored, prompt = send(shared, messages=said({"type": "document", "source": source}))
        assert ignored == ["document"] and "[document] (Documents of the kind" in prompt
    _, prompt = send(shared, messages=said({"type": "document", "source": PDF}))
    assert "'application/pdf' cannot be read here" in prompt


def test_a_picture_in_a_result_leaves_a_note_on_a_text_model(serve) -> None:
    server = serve("I see.")
    use = {"type": "tool_use", "id": "t", "name": "shot", "input": {}}
    text = {"type": "text", "text": "Here:"}
    result = {"type": "tool_result", "tool_use_id": "t",
              "content": [text, {"type": "image", "source": PIXEL}]}  # fmt: skip
    messages = [*USER, *said(use, role="assistant")[:1], {"role": "user", "content": [result]}]
    ignored, prompt = send(server, messages=messages, tools=[TOOL])
    assert ignored == ["image"]
    assert "Here:\n[image] (This model takes no pictures: it was left out.)" in prompt
    # A person who sends one is told.
    refused = server.post(
        "/v1/messages",
        model="fake",
        max_tokens=9,
        messages=said({"type": "image", "source": PIXEL}),
    )
    assert refused.status_code == 400


def test_tool_references_are_told(serve) -> None:
    server = serve("Yes.")
    use = {"type": "tool_use", "id": "t", "name": "search", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t",
              "content": [{"type": "tool_reference", "tool_name": "weather"}]}  # fmt: skip
    messages = [*USER, *said(use, role="assistant")[:1], {"role": "user", "content": [result]}]
    ignored, prompt = send(server, messages=messages, tools=[TOOL])
    assert ignored == [] and "Tool found: weather" in prompt


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
        {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
        {"messages": [*USER, {"role": "system", "content": [
            {"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]},
            *USER]},
        {"metadata": {"user_id": "u"}, "betas": ["x"], "speed": "fast"},
    ],
)  # fmt: skip
def test_hints_are_taken(shared: RunningServer, fields: dict[str, Any]) -> None:
    assert send(shared, **fields)[0] == []


def test_edits_of_the_context_are_named(shared: RunningServer) -> None:
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    assert send(shared, context_management=edits)[0] == ["context_management"]


def test_models_as_claude_code_lists_them(start) -> None:
    server = start(FakeClient())
    reply = server.http.get("/v1/models?limit=1000", headers={"anthropic-version": "2023-06-01"})
    assert {(m["id"], m["display_name"], m["type"]) for m in reply.json()["data"]} == {
        ("fake", "fake", "model"), ("fake-alias", "fake-alias", "model"),
    }  # fmt: skip
    page = server.anthropic().models.list(limit=1000)
    assert [model.id for model in page] == ["fake", "fake-alias"]
    assert page.data[0].created_at.tzinfo is not None and not page.has_more


class ThinkingTokenizer(ByteTokenizer):
    """Has one token for the end of a thought."""

    def encode(self, text: str, **options: bool) -> list[int]:
        return [CLOSE] if text == "</think>" else super().encode(text)


CLOSE = 257


@pytest.mark.parametrize("tools", [[], [TOOL]])
def test_a_budget_of_thought_reaches_the_engine(serve, tools: list[Any]) -> None:
    template = ChatTemplate({"default": QWEN_TOOLS + "{# </think> #}"}, {})
    thinking = {"type": "enabled", "budget_tokens": 1024}
    asked = {"max_tokens": 1500, "tools": tools}
    able = serve("Hm.", tokenizer=ThinkingTokenizer(), chat_template=template)
    send(able, thinking=thinking, **asked)
    grammar = able.client.requests[-1].grammar
    assert "[max_tokens=1024]" in grammar and f"<[{CLOSE}]>" in grammar
    send(able, thinking={"type": "adaptive"}, **asked)
    assert "max_tokens" not in (able.client.requests[-1].grammar or "")
    assert able.chat(thinking_token_budget=9).status_code == 200
    assert "[max_tokens=9]" in able.client.requests[-1].grammar
    # Where the end of a thought is text, nothing can hold a model to it.
    body = {"model": "fake", "messages": USER, "thinking": thinking, **asked}
    reply = serve("Hm.", chat_template=template).post("/v1/messages", **body)
    assert reply.status_code == 200 and "budget" in reply.headers["pagoda-not-enforced"]
    # A model that does not think has nothing to be held to.
    reply = serve("Hm.").post("/v1/messages", **body)
    assert reply.status_code == 200 and "pagoda-not-enforced" not in reply.headers
