"""vLLM's routes around tokens: batch, render, generate, abort, invocations."""

import json
import threading
from typing import Any

import pytest

from tests.server.conftest import RunningServer, wait_until
from tests.server.fakes import REPLY, FakeClient, seeded
from tests.server.test_errors import error_of
from tests.server.test_pooling import encoder
from tests.server.test_streams import events

USER = [{"role": "user", "content": "hi"}]
ROUTE = "/inference/v1/generate"


def test_batch_has_a_choice_per_conversation(start) -> None:
    client = FakeClient(script=lambda request: bytes(request.prompt_token_ids)[:9])
    server = start(client)
    conversations = [[{"role": "user", "content": text}] for text in ("one", "two", "six")]
    reply = server.post("/v1/chat/completions/batch", messages=conversations).json()
    assert reply["object"] == "chat.completion"
    texts = [choice["message"]["content"] for choice in reply["choices"]]
    assert texts == ["user: one", "user: two", "user: six"]
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert reply["usage"]["prompt_tokens"] == sum(len(r.prompt_token_ids) for r in client.requests)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"messages": USER}, "messages.0"),
        ({"messages": [[]]}, "messages.0"),
        ({"messages": []}, "messages"),
    ],
)
def test_what_a_batch_cannot_do(shared: RunningServer, fields: dict[str, Any], param: str) -> None:
    reply = shared.post("/v1/chat/completions/batch", **{"messages": [USER], **fields})
    assert error_of(reply)["param"] == param


def test_a_rendered_chat_generates_the_same(start) -> None:
    client = FakeClient(script=seeded)
    server = start(client, defaults={"top_k": 20})
    sent = {"messages": USER, "temperature": 0.5, "seed": 7, "stop": "zz", "logprobs": True,
            "cache_salt": "salt", "priority": 3}  # fmt: skip
    chat = server.post("/v1/chat/completions", **sent).json()
    rendered = server.post("/v1/chat/completions/render", **sent).json()
    assert bytes(rendered["token_ids"]).decode() == "user: hi\nassistant: "
    assert len(client.requests) == 1, "a render starts nothing"
    reply = server.post(ROUTE, **rendered, output_mode="text").json()
    assert reply["choices"][0]["text"] == chat["choices"][0]["message"]["content"]
    first, second = client.requests
    assert first.sampling == second.sampling and first.sampling.top_k == 20
    assert (second.cache_salt, second.priority) == ("salt", 3)


def test_rendered_completions(shared: RunningServer) -> None:
    reply = shared.post("/v1/completions/render", prompt=["ab", "c"], max_tokens=5).json()
    assert [entry["token_ids"] for entry in reply] == [[97, 98], [99]]
    assert reply[0]["sampling_params"]["max_tokens"] == 5
    assert reply[0]["model"] == "fake"
    assert error_of(shared.post("/v1/completions/render", prompt="x" * 5000))["param"] == "prompt"


def test_generate(shared: RunningServer) -> None:
    sampling = {"max_tokens": 3, "logprobs": 1}
    sent = {"token_ids": [97, 98], "sampling_params": sampling, "request_id": "mine"}
    reply = shared.post(ROUTE, **sent).json()
    assert reply["request_id"] == "mine" and reply["model"] == "fake"
    choice = reply["choices"][0]
    assert choice["token_ids"] == [72, 101, 108] and "text" not in choice
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["content"][0] == {
        "token_id": 72, "logprob": -0.5, "rank": 1,
        "top_logprobs": [{"token_id": 72, "logprob": -0.5, "rank": 1}],
    }  # fmt: skip
    assert reply["usage"]["completion_tokens"] == 3 and reply["prompt_token_ids"] is None
    reply = shared.post(ROUTE, **sent, output_mode="text", return_token_ids=True).json()
    assert reply["choices"][0]["text"] == "Hel" and reply["prompt_token_ids"] == [97, 98]
    assert reply["choices"][0]["logprobs"]["content"][0]["token"] == "H"


def test_generate_streams(shared: RunningServer) -> None:
    chunks = events(
        shared.post(
            ROUTE, token_ids=[97], sampling_params={"max_tokens": 2, "n": 1}, stream=True,
            stream_options={"include_usage": True}, return_token_ids=True,
        )
    )  # fmt: skip
    assert [c["choices"][0]["token_ids"] for c in chunks[:-1]] == [[72], [101]]
    assert chunks[0]["prompt_token_ids"] == [97] and "prompt_token_ids" not in chunks[1]
    assert chunks[1]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [999]}, "prompt"),
        ({"features": {"mm_hashes": {}}}, "features"),
        ({"sampling_params": {"temperature": -1}}, "temperature"),
        ({"sampling_params": {"structured_outputs": {"regex": "a"}}}, "structured_outputs"),
        ({"stream_options": {}}, "stream_options"),
        ({"output_mode": "words"}, "output_mode"),
    ],
)
def test_what_generate_refuses(shared: RunningServer, fields: dict[str, Any], param: str) -> None:
    assert error_of(shared.post(ROUTE, **{"token_ids": [97], **fields}))["param"] == param


@pytest.mark.parametrize("stream", [True, False])
def test_abort_ends_a_reply_with_what_there_is(start, stream: bool) -> None:
    client = FakeClient(delay=0.02)
    server = start(client)
    sent = {"token_ids": [97], "request_id": "mine", "stream": stream}
    replies = []
    thread = threading.Thread(target=lambda: replies.append(server.post(ROUTE, **sent)))
    thread.start()
    wait_until(lambda: len(client.running) == 1)
    done = server.post("/inference/v1/abort_requests", request_ids=["mine", "other"]).json()
    assert done == {"aborted": ["mine"]}
    thread.join()
    reply = replies[0]
    choice = (events(reply)[-1] if stream else reply.json())["choices"][0]
    assert choice["finish_reason"] == "abort"
    assert len(client.aborted) == 1
    wait_until(lambda: not server.context.generations)
    again = server.post("/inference/v1/abort_requests", request_ids=["mine"]).json()
    assert again == {"aborted": []}


def test_abort_reaches_chats_by_the_id_of_their_reply(start) -> None:
    client = FakeClient(delay=0.02)
    server = start(client)
    body = {"messages": USER, "stream": True, "n": 2}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        lines = reply.iter_lines()
        name = json.loads(next(lines).removeprefix("data: "))["id"]
        # The stream holds its connection; another client aborts it.
        server.openai().with_options(base_url=server.url).post(
            "/inference/v1/abort_requests", body={"request_ids": [name]}, cast_to=dict
        )
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if "{" in line]
    reasons = [c["choices"][0]["finish_reason"] for c in chunks]
    assert reasons.count("abort") == 2


def test_timings_of_openai_routes(shared: RunningServer) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": USER}), ("/v1/completions", {"prompt": "ab"}),
    ):  # fmt: skip
        whole = shared.post(path, **body, max_tokens=2).json()
        assert whole["timings"]["predicted_n"] == 2
        chunks = events(shared.post(path, **body, max_tokens=2, stream=True))
        assert ["timings" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        chunks = events(
            shared.post(path, **body, max_tokens=3, stream=True, timings_per_token=True)
        )
        told = [c["timings"]["predicted_n"] for c in chunks if "timings" in c]
        assert told == [1, 2, 3]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"messages": USER}, "chat.completion"),
        ({"prompt": "a"}, "text_completion"),
    ],
)
def test_invocations(shared: RunningServer, body: dict[str, Any], expected: str) -> None:
    reply = shared.post("/invocations", **body)
    assert reply.status_code == 200 and reply.json()["object"] == expected


def test_invocations_of_tokens_and_streams(shared: RunningServer) -> None:
    reply = shared.post("/invocations", token_ids=[97], sampling_params={"max_tokens": 1})
    assert reply.json()["choices"][0]["token_ids"] == [72]
    chunks = events(shared.post("/invocations", messages=USER, stream=True))
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == REPLY


def test_invocations_of_an_encoder(start) -> None:
    server = start(encoder())
    assert server.post("/invocations", input="ab").json()["data"][0]["object"] == "embedding"
    assert server.post("/invocations", query="a", documents=["b"]).json()["results"]
    assert (
        server.post("/invocations", text_1="a", text_2="b").json()["data"][0]["object"] == "score"
    )
    classifier = start(encoder(labels=("no", "yes")))
    assert classifier.post("/invocations", input="ab").json()["data"][0]["label"]


def test_invocations_that_are_no_request(shared: RunningServer) -> None:
    assert "messages" in error_of(shared.post("/invocations", nothing=1))["message"]
    error_of(shared.http.post("/invocations", content=b"[]",
                              headers={"content-type": "application/json"}))  # fmt: skip


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/messages", {"max_tokens": 7, "messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses", {"max_output_tokens": 7, "input": "hi"}),
    ],
)
def test_other_dialects_are_rendered_too(shared: RunningServer, path: str, fields: dict) -> None:
    rendered = shared.post(f"{path}/render", model="fake", **fields).json()
    assert bytes(rendered["token_ids"]).decode() == "user: hi\nassistant: "
    assert rendered["sampling_params"]["max_tokens"] == 7
