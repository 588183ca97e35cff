"""Fields and metrics of llama-server on OpenAI's routes."""

import time
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagoda.core.messages import EngineStats
from tests.server.conftest import RunningServer, wait_until
from tests.server.fakes import REPLY, FakeClient
from tests.server.test_tools import CALLS, TOOLS
from tests.unit.grammar.bytes_vocabulary import ByteGrammars

ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ("/v1/completions", {"prompt": "hi"}),
]
BY_ROUTE = pytest.mark.parametrize(("path", "body"), ROUTES, ids=["chat", "completions"])


@BY_ROUTE
def test_a_grammar(shared: RunningServer, path: str, body: dict[str, Any]) -> None:
    reply = shared.post(path, grammar='root ::= "a"{5,5}', **body)
    assert reply.status_code == 200, reply.text
    grammar, grammars = shared.client.requests[-1].grammar, ByteGrammars()
    assert grammar is not None
    assert grammars.accepts(grammar, "aaaaa") and not grammars.accepts(grammar, "aaaa")


@BY_ROUTE
@pytest.mark.parametrize("schema", [{"const": "42"}, {"type": "integer"}])
def test_a_schema(shared: RunningServer, path: str, body: dict[str, Any], schema: Any) -> None:
    assert shared.post(path, json_schema=schema, **body).status_code == 200
    grammar, grammars = shared.client.requests[-1].grammar, ByteGrammars()
    assert grammar is not None
    assert grammars.accepts(grammar, '"42"') == ("const" in schema)
    assert grammars.accepts(grammar, "42") == ("type" in schema)


@BY_ROUTE
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"grammar": "root ::= ("}, "grammar"),
        ({"json_schema": {"type": "hiccup"}}, "json_schema"),
        ({"json_schema": 5}, "json_schema"),
        ({"grammar": 'root ::= "a"', "json_schema": {}}, "json_schema"),
        ({"grammar": 'root ::= "a"', "response_format": {"type": "json_object"}}, "grammar"),
        ({"json_schema": {}, "structured_outputs": {"regex": "a"}}, "json_schema"),
        ({"n_predict": -2}, "n_predict"),
    ],
    ids=str,
)
def test_what_is_wrong_with_them(
    shared: RunningServer, path: str, body: dict[str, Any], fields: dict[str, Any], param: str
) -> None:
    reply = shared.post(path, **fields, **body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_a_schema_beside_tools(serve) -> None:
    """A call or an answer, as with `response_format`."""
    server = serve(CALLS)
    assert server.chat(tools=TOOLS, json_schema={"const": 1}).status_code == 200
    grammar, grammars = server.client.requests[-1].grammar, ByteGrammars()
    assert grammars.accepts(grammar, "1") and grammars.accepts(grammar, CALLS.strip())
    assert not grammars.accepts(grammar, "Sunny.")


@BY_ROUTE
@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"n_predict": 5}, 5),
        ({"n_predict": 5, "max_tokens": 9}, 5),
        ({"n_predict": -1, "max_tokens": 9}, len(REPLY.encode()) + 1),
        ({"max_tokens": -1}, len(REPLY.encode()) + 1),
        ({"max_tokens": -1, "n_predict": 3}, 3),
        ({"n_predict": 10**6}, len(REPLY.encode()) + 1),
    ],
    ids=str,
)
def test_n_predict(
    shared: RunningServer, path: str, body: dict[str, Any], fields: dict[str, int], tokens: int
) -> None:
    reply = shared.post(path, **fields, **body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] == tokens


@pytest.mark.parametrize("fields", [{"grammar": 'root ::= "a"'}, {"json_schema": {}}], ids=str)
def test_a_batch_takes_none(shared: RunningServer, fields: dict[str, Any]) -> None:
    body = {"messages": [[{"role": "user", "content": "hi"}]]}
    assert shared.post("/v1/chat/completions/batch", **body, **fields).status_code == 400
    neutral = shared.post("/v1/chat/completions/batch", **body, grammar="", n_predict=2)
    assert neutral.status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}),
    ],
)
def test_other_dialects_refuse_what_they_would_not_enforce(
    shared: RunningServer, path: str, body: dict[str, Any]
) -> None:
    assert shared.post(path, json_schema={"type": "integer"}, **body).status_code == 400


def test_metrics(start) -> None:
    """Their names, without labels: scrapers look for them at the beginning of a line."""
    stats = EngineStats(
        prompt_tokens=30, generation_tokens=12, prefix_queries=40, prefix_hits=10, num_steps=7,
        step_requests=21, longest_request=99,        num_running=2, num_waiting=3,
    )  # fmt: skip
    server = start(FakeClient(stats=stats, delay=0.002))
    assert server.chat().status_code == 200

    def found() -> dict[str, float]:
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(server.http.get("/metrics").text)
            for sample in family.samples
            if sample.name.startswith("llamacpp:") and "spec_decode" not in sample.name
        }

    wait_until(lambda: found()["llamacpp:tokens_predicted_seconds_total"] > 0)
    told = found()
    seconds = {name: told.pop(name) for name in list(told) if "seconds" in name}
    prompt, reply = (
        seconds[f"llamacpp:{name}_seconds_total"] for name in ("prompt", "tokens_predicted")
    )
    assert seconds == {
        "llamacpp:prompt_seconds_total": prompt,
        "llamacpp:tokens_predicted_seconds_total": reply,
        "llamacpp:prompt_tokens_seconds": pytest.approx(30 / prompt),
        "llamacpp:predicted_tokens_seconds": pytest.approx(12 / reply),
    }
    assert told == {
        "llamacpp:prompt_tokens_total": 30, "llamacpp:prompt_tokens_cached_total": 10,
        "llamacpp:prompt_cache_hit_ratio": 0.25, "llamacpp:tokens_predicted_total": 12,
        "llamacpp:n_decode_total": 7, "llamacpp:requests_processing": 2,
        "llamacpp:requests_deferred": 3, "llamacpp:n_busy_slots_per_decode": 3,
        "llamacpp:n_tokens_max": 99,
    }  # fmt: skip
    told = server.http.get("/metrics")
    assert "\nllamacpp:prompt_tokens_total 30" in told.text
    assert 0 <= time.time() - int(told.headers["Process-Start-Time-Unix"]) < 600
