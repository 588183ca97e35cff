"""What replies, metrics and the log say of guessed tokens, and predictions that clients send."""

import asyncio
import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagoda.core.messages import AddRequest, EngineStats, RequestDelta
from pagoda.server.stats import log_stats, speculation_line
from tests.server.conftest import RunningServer
from tests.server.fakes import REPLY, FakeClient, Guessing, served_model


def drafts(timings: dict[str, Any]) -> tuple[int, int]:
    return timings["draft_n"], timings["draft_n_accepted"]


def chunks(server: RunningServer, path: str, **body: Any) -> list[dict[str, Any]]:
    lines = server.post(path, stream=True, **body).text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@pytest.fixture
def guessing(start) -> RunningServer:
    return start(Guessing())


def test_timings_tell_of_guesses(guessing: RunningServer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    for path, body in (
        ("/v1/chat/completions", {"messages": messages}),
        ("/v1/completions", {"prompt": "a"}),
        ("/completion", {"prompt": "a"}),
    ):
        body |= {"max_tokens": 9}
        assert drafts(guessing.post(path, **body).json()["timings"]) == (8, 4)
        assert drafts(chunks(guessing, path, **body)[-1]["timings"]) == (8, 4)
        told = [
            chunk["timings"].get("draft_n", 0)
            for chunk in chunks(guessing, path, timings_per_token=True, **body)
            if "timings" in chunk
        ]
        assert told[-1] == 8 and told == sorted(told)


def test_timings_are_silent_where_nothing_was_guessed(shared: RunningServer) -> None:
    assert not {"draft_n", "draft_n_accepted"} & shared.chat().json()["timings"].keys()


def test_tokens_behind_a_stop_string_are_not_counted(guessing: RunningServer) -> None:
    """It ends within the second step's tokens."""
    reply = guessing.chat(stop=REPLY[3:5]).json()
    assert reply["choices"][0]["message"]["content"] == REPLY[:3]
    assert reply["timings"]["predicted_n"] == reply["usage"]["completion_tokens"] == 5
    assert drafts(reply["timings"]) == (4, 2)
    sums = 'vllm:request_generation_tokens_sum{engine="0",model_name="fake"} 5.0'
    assert sums in guessing.http.get("/metrics").text


def test_guesses_behind_a_stop_string_are_not_accepted(start) -> None:
    """A reader that was late gets all steps in one delta."""

    class Late(Guessing):
        def deltas(self, request: AddRequest) -> list[RequestDelta]:
            first, *others = super().deltas(request)
            first.token_ids += [token for delta in others for token in delta.token_ids]
            first.num_draft_tokens, first.num_accepted_tokens = 60, 30
            return [first]

    reply = start(Late()).chat(stop=REPLY[3:5], prediction={"type": "content", "content": "x"})
    assert drafts(reply.json()["timings"]) == (60, 5)
    usage = reply.json()["usage"]
    details = usage["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == usage["completion_tokens"] == 5
    assert details["rejected_prediction_tokens"] == 55


@pytest.mark.parametrize("program", ["vllm", "llamacpp"])
def test_guessed_tokens_are_counted(start, program: str) -> None:
    stats = EngineStats(
        spec_drafts=8, spec_draft_tokens=24, spec_accepted_tokens=11,
        spec_accepted_per_position=[7, 4, 0],
    )  # fmt: skip
    text = start(FakeClient(stats=stats)).http.get("/metrics").text
    found = {
        (sample.name, sample.labels.get("position")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(f"{program}:spec_decode_")
    }
    prefix = f"{program}:spec_decode_num"
    assert found == {
        (f"{prefix}_drafts_total", None): 8,
        (f"{prefix}_draft_tokens_total", None): 24,
        (f"{prefix}_accepted_tokens_total", None): 11,
        (f"{prefix}_accepted_tokens_per_pos_total", "0"): 7,
        (f"{prefix}_accepted_tokens_per_pos_total", "1"): 4,
        (f"{prefix}_accepted_tokens_per_pos_total", "2"): 0,
    }


def test_speculation_line() -> None:
    earlier = EngineStats(
        num_steps=1, spec_drafts=10, spec_draft_tokens=20, spec_accepted_tokens=9,
        spec_accepted_per_position=[6, 3],
    )  # fmt: skip
    stats = EngineStats(
        num_steps=9, spec_drafts=18, spec_draft_tokens=52, spec_accepted_tokens=25,
        spec_accepted_per_position=[13, 9, 2, 1],
    )  # fmt: skip
    assert speculation_line(earlier, stats, 10.0) == (
        "SpecDecoding metrics: Mean acceptance length: 3.00, Accepted throughput: 1.60 tokens/s, "
        "Drafted throughput: 3.20 tokens/s, Accepted: 16 tokens, Drafted: 32 tokens, "
        "Per-position acceptance rate: 0.875, 0.750, 0.250, 0.125, "
        "Avg Draft acceptance rate: 50.0%"
    )
    assert speculation_line(stats, stats, 10.0) is None
    # The counters of a restarted engine, and those of the first look, began at zero.
    restarted = speculation_line(stats, earlier, 10.0)
    assert restarted == speculation_line(None, earlier, 10.0)
    assert restarted is not None and "Accepted: 9 tokens" in restarted


async def test_guesses_are_logged_behind_the_throughput(caplog: pytest.LogCaptureFixture) -> None:
    stats = EngineStats(
        num_steps=9, generation_tokens=30, spec_drafts=1, spec_draft_tokens=2,
        spec_accepted_tokens=2, spec_accepted_per_position=[1, 1],
    )  # fmt: skip
    model = served_model(FakeClient(stats=stats))
    with caplog.at_level("INFO"):
        logs = asyncio.create_task(log_stats(lambda: [model], interval=0.001))
        async with asyncio.timeout(20):
            while not caplog.messages:
                await asyncio.sleep(0.001)
        logs.cancel()
    told = [line.split(":")[0] for line in caplog.messages]
    assert told == ["Engine 000", "SpecDecoding metrics"]


TEXT = "Hello, Wörld!"
PARTS = [{"type": "text", "text": "Hello, "}, {"type": "text", "text": "Wörld!"}]


@pytest.mark.parametrize("content", [TEXT, PARTS])
def test_a_prediction_through_the_openai_client(guessing: RunningServer, content: Any) -> None:
    """Usage counts the guesses of a reply that was predicted, of all choices, and of no other."""
    create = guessing.openai().chat.completions.create
    request: dict[str, Any] = {
        "model": "fake", "messages": [{"role": "user", "content": "hi"}], "n": 2, "max_tokens": 9,
    }  # fmt: skip
    prediction = {"type": "content", "content": content}
    usage = create(**request, prediction=prediction).usage
    *_, last = create(
        **request, prediction=prediction, stream=True, stream_options={"include_usage": True}
    )
    for told in (usage, last.usage):
        details = told.completion_tokens_details
        assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (8, 8)
        assert (details.reasoning_tokens, told.completion_tokens) == (0, 18)
    assert create(**request).usage.completion_tokens_details is None
    sent = [bytes(request.prediction_token_ids).decode() for request in guessing.client.requests]
    assert sent == [TEXT] * 4 + [""] * 2


def test_a_prediction_that_nobody_used(shared: RunningServer) -> None:
    details = shared.chat(prediction={"type": "content", "content": "x"}).json()["usage"][
        "completion_tokens_details"
    ]
    assert details == {
        "reasoning_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "prediction",
    [
        "text",
        ["text"],
        {"content": "text"},
        {"type": "content"},
        {"type": "content", "content": None},
        {"type": "content", "content": [1, 2]},
        {"type": "content", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
        {"type": "text", "content": "text"},
    ],
)
def test_other_shapes_of_predictions_are_refused(shared: RunningServer, prediction: Any) -> None:
    before = len(shared.client.requests)
    reply = shared.chat(prediction=prediction)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith("prediction")
    assert len(shared.client.requests) == before


@pytest.mark.parametrize("length", [2049, 50_000])
def test_a_prediction_beyond_the_context_is_refused(shared: RunningServer, length: int) -> None:
    reply = shared.chat(prediction={"type": "content", "content": "x" * length})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == "prediction" and "your prediction contains" in error["message"]


def test_no_prediction_where_there_is_none_to_take(shared: RunningServer) -> None:
    for prediction in (None, {"type": "content", "content": []}):
        assert shared.chat(prediction=prediction).status_code == 200
    conversations = [[{"role": "user", "content": "hi"}]]
    body = {"messages": conversations, "prediction": {"type": "content", "content": "x"}}
    assert shared.post("/v1/chat/completions/batch", **body).status_code == 200
    assert not any(request.prediction_token_ids for request in shared.client.requests[-3:])
