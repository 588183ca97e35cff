"""A prompt that takes long: every stream says so, in events that its clients know."""

import json
from typing import Any

import pytest
from websockets.sync.client import connect

from pagoda.config.server import ServerConfig
from pagoda.core.messages import AddRequest, RequestDelta
from tests.server.conftest import RunningServer
from tests.server.fakes import FakeClient

OFTEN = ServerConfig(sse_keep_alive_interval=0.05, disable_uvicorn_access_log=True)
PARTS = 4
TEXT = "Hi"
USER: list[Any] = [{"role": "user", "content": "hi"}]


class SlowPrompt(FakeClient):
    """Computes a prompt in parts, each of which takes `delay` seconds, as does each token."""

    def deltas(self, request: AddRequest) -> list[RequestDelta]:
        size = len(request.prompt_token_ids)
        done = [max(1, size * part // (PARTS + 1)) for part in range(1, PARTS + 1)]
        progress = [
            RequestDelta(req_id=request.req_id, prompt_progress=(tokens, 1)) for tokens in done
        ]
        return [*progress, *super().deltas(request)]


@pytest.fixture
def slow(start) -> RunningServer:
    return start(SlowPrompt(script=lambda request: TEXT.encode(), delay=0.15), OFTEN)


def told(reply: Any) -> list[dict[str, Any]]:
    assert reply.status_code == 200
    parts = reply.text.removesuffix("\n\n").split("\n\n")
    lines = [part.split("\n")[-1].removeprefix("data: ") for part in parts]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def check_progress(chunks: list[dict[str, Any]]) -> None:
    """Of those before the first text."""
    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    done = [entry["processed"] for entry in progress]
    assert len(done) >= 3 and done == sorted(done) and done[-1] > done[0]
    assert all(0 <= entry["processed"] < entry["total"] for entry in progress)
    assert progress[-1]["cache"] == 1 and progress[-1]["time_ms"] > progress[0]["time_ms"]


def test_chat(slow: RunningServer) -> None:
    chunks = told(slow.chat(stream=True, max_tokens=9, stream_options={"include_usage": True}))
    check_progress(chunks)
    silent = [chunk for chunk in chunks if "prompt_progress" in chunk]
    empty = [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}]
    assert all(chunk["choices"] == empty for chunk in silent)
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    # As load generators read it (vLLM's among them): no text, and nothing to trip over.
    texts = [chunk["choices"][0]["delta"].get("content") for chunk in chunks if chunk["choices"]]
    assert "".join(text or "" for text in texts) == TEXT
    with slow.openai().chat.completions.stream(model="fake", messages=USER, max_tokens=9) as stream:
        assert any(event.type == "content.delta" for event in stream)
        final = stream.get_final_completion().choices[0]
    assert (final.message.role, final.message.content) == ("assistant", TEXT)


def test_completions(slow: RunningServer) -> None:
    body = {"model": "fake", "prompt": "hi there", "max_tokens": 9}
    chunks = told(slow.post("/v1/completions", **body, stream=True))
    check_progress(chunks)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == TEXT
    stream = slow.openai().completions.create(**body, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == TEXT


def test_llama_servers_completion(slow: RunningServer) -> None:
    chunks = told(slow.post("/completion", prompt="hi there", n_predict=9, stream=True))
    check_progress(chunks)
    assert "".join(chunk["content"] for chunk in chunks) == TEXT


def test_tokens_in_tokens_out(slow: RunningServer) -> None:
    asked = {"token_ids": [65] * 9, "sampling_params": {"max_tokens": 9}, "stream": True}
    chunks = told(slow.post("/inference/v1/generate", **asked))
    assert sum(not chunk["choices"] for chunk in chunks) >= 3
    tokens = [token for chunk in chunks for choice in chunk["choices"] for token in
              choice["token_ids"]]  # fmt: skip
    assert bytes(tokens[:-1]).decode() == TEXT


def test_messages(slow: RunningServer) -> None:
    body: dict[str, Any] = {"model": "fake", "messages": USER, "max_tokens": 9}
    events = told(slow.post("/v1/messages", **body, stream=True))
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start" and kinds.count("message_start") == 1
    assert kinds.index("content_block_start") >= 4
    assert set(kinds[1 : kinds.index("content_block_start")]) == {"ping"}
    usage = events[kinds.index("message_delta")]["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len("user: hi\nassistant: ")
    with slow.anthropic().messages.stream(**body) as stream:
        assert "".join(stream.text_stream) == TEXT
        assert stream.get_final_message().usage.output_tokens == 3


def check_response(events: list[dict[str, Any]]) -> None:
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds.count("response.in_progress") >= 4 and kinds[-1] == "response.completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_responses(slow: RunningServer) -> None:
    body: dict[str, Any] = {"model": "fake", "input": "hi", "max_output_tokens": 9}
    check_response(told(slow.post("/v1/responses", **body, stream=True)))
    with slow.openai().responses.stream(**body) as stream:
        assert "response.output_text.delta" in [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == TEXT
    # Who comes back later gets the same numbers.
    replayed = told(slow.http.get(f"/v1/responses/{final.id}?stream=true&starting_after=2"))
    assert replayed[0]["sequence_number"] == 3


def test_responses_over_a_websocket(slow: RunningServer) -> None:
    url = slow.url.replace("http", "ws") + "/v1/responses"
    asked = {"type": "response.create", "model": "fake", "input": "hi", "max_output_tokens": 9}
    events = []
    with connect(url) as socket:
        socket.send(json.dumps(asked))
        while not events or events[-1]["type"] != "response.completed":
            events.append(json.loads(socket.recv(30)))
        check_response(events)
        # A prompt that is computed ahead takes as long.
        socket.send(json.dumps({**asked, "generate": False}))
        events = []
        while not events or events[-1]["type"] != "response.completed":
            events.append(json.loads(socket.recv(30)))
        check_response(events)


def test_thought_that_is_not_shown_is_no_silence(start) -> None:
    """Tokens come, and nothing of them is told."""
    server = start(FakeClient(script=lambda request: b"<" + b"x" * 20 + b"|y", delay=0.05), OFTEN)
    thinking = {"type": "adaptive", "display": "omitted"}
    body = {"model": "fake", "messages": USER, "max_tokens": 30, "thinking": thinking}
    kinds = [event["type"] for event in told(server.post("/v1/messages", **body, stream=True))]
    assert kinds.count("ping") >= 4
    hidden = told(server.chat(stream=True, include_reasoning=False))
    assert sum(not chunk["choices"][0]["delta"] for chunk in hidden) >= 3


def test_a_short_silence_is_left_alone(start) -> None:
    server = start(SlowPrompt(delay=0.05))
    assert "prompt_progress" not in server.chat(stream=True, max_tokens=9).text
    server = start(SlowPrompt(delay=0.05), ServerConfig(sse_keep_alive_interval=0))
    assert "prompt_progress" not in server.chat(stream=True, max_tokens=9).text


def test_every_stream_speaks_within_ten_seconds_by_default() -> None:
    assert 0 < ServerConfig().sse_keep_alive_interval < 10


def test_progress_is_no_reply(slow: RunningServer) -> None:
    """It counts neither as the first token nor as a prompt."""
    reply = slow.chat(max_tokens=9)
    assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == len(
        "user: hi\nassistant: "
    ) // 2  # fmt: skip
    metrics = slow.http.get("/metrics").text
    labels = 'engine="0",model_name="fake"'
    assert f"vllm:time_to_first_token_seconds_count{{{labels}}} 1.0" in metrics
    assert f"vllm:prompt_tokens_total{{{labels}}} 20.0" in metrics
