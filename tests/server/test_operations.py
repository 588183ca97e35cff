"""Probes, metrics, documents, log lines, and what the server process imports."""

import logging
import socket
import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagoda.config.engine import SchedulerConfig
from pagoda.config.server import ServerConfig
from pagoda.core.messages import AddRequest, EngineStats, RequestDelta, Tiers
from pagoda.engine.processes.queue_limit import QueueLimit
from pagoda.engine.served.fleet import Fleet
from pagoda.server.app import create_app
from pagoda.server.http.listen import listen
from pagoda.server.stats import throughput_line, transfer_line
from pagoda.text.parsers.select import parser_for
from pagoda.version import __version__
from tests.server.conftest import RunningServer, wait_until
from tests.server.fakes import REPLY, FakeClient

# What Grafana dashboards made for vLLM ask for.
METRICS = {
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
    "vllm:request_success_total", "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total", "vllm:time_to_first_token_seconds_bucket",
    "vllm:inter_token_latency_seconds_sum", "vllm:e2e_request_latency_seconds_count",
    "vllm:request_prompt_tokens_sum", "vllm:request_generation_tokens_bucket",
    "vllm:request_params_n_count", "vllm:request_params_max_tokens_count",
    "vllm:request_decode_time_seconds_sum", "vllm:request_time_per_output_token_seconds_sum",
    "vllm:request_queue_time_seconds_sum", "vllm:cache_config_info", "http_requests_total",
    "vllm:num_requests_waiting_by_reason", "vllm:engine_sleep_state",
    "vllm:admission_rejections_total", "vllm:iteration_tokens_total_bucket",
    "vllm:request_max_num_generation_tokens_sum", "vllm:request_num_preemptions_count",
    "vllm:prompt_tokens_by_source_total", "vllm:prompt_tokens_cached_total",
    "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
}  # fmt: skip


def samples(server: RunningServer) -> dict[tuple[str, str], float]:
    text = server.http.get("/metrics").text
    return {
        (sample.name, sample.labels.get("finished_reason", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(("vllm:", "http_"))
    }


def test_metrics(start) -> None:
    server = start(FakeClient(abilities={"kv_cache_dtype": "fp8_e4m3"}))
    server.chat()
    server.chat(stream=True, max_tokens=3, n=2)
    found = samples(server)
    assert 'cache_dtype="fp8_e4m3"' in server.http.get("/metrics").text
    assert {name for name, _ in found} >= METRICS
    prompt = len("user: hi\nassistant: ")
    assert found["vllm:request_success_total", "stop"] == 1
    assert found["vllm:request_success_total", "length"] == 2
    assert found["vllm:prompt_tokens_total", ""] == 3 * prompt
    assert found["vllm:time_to_first_token_seconds_count", ""] == 3
    assert found["vllm:inter_token_latency_seconds_count", ""] >= 2
    assert found["vllm:request_generation_tokens_sum", ""] >= 6
    assert found["vllm:request_queue_time_seconds_count", ""] == 3
    assert found["vllm:request_prefill_time_seconds_count", ""] == 3
    assert found["vllm:kv_cache_usage_perc", ""] == 0.25
    assert found["vllm:generation_tokens_total", ""] == 7
    assert found["vllm:prefix_cache_hits_total", ""] == 4
    # Of each prompt's choices the longest.
    longest = len(REPLY.encode()) + 1 + 3
    assert found["vllm:request_max_num_generation_tokens_sum", ""] == longest
    assert found["vllm:request_max_num_generation_tokens_count", ""] == 2


class Second(FakeClient):
    """Two replicas, of which the second answers all."""

    @property
    def engines(self) -> list[FakeClient]:
        return [FakeClient(), self]

    def deltas(self, request: AddRequest) -> list[RequestDelta]:
        deltas = super().deltas(request)
        for delta in deltas:
            delta.engine = 1
        return deltas


def test_requests_count_at_the_engine_that_answers(start) -> None:
    server = start(Second())
    server.chat()
    server.chat(stream=True, max_tokens=3, n=2)
    found = {
        (sample.name.removeprefix("vllm:"), sample.labels["engine"]): sample.value
        for family in text_string_to_metric_families(server.http.get("/metrics").text)
        for sample in family.samples
        if sample.labels.get("finished_reason", "length") == "length" and "engine" in sample.labels
    }
    assert found["request_success_total", "1"] == 2
    for name, count in (
        ("e2e_request_latency_seconds_count", 3), ("time_to_first_token_seconds_count", 3),
        ("request_generation_tokens_count", 3), ("request_max_num_generation_tokens_count", 2),
    ):  # fmt: skip
        assert (found[name, "0"], found[name, "1"]) == (0, count), name
    assert found["prompt_tokens_total", "0"] == 0 < found["prompt_tokens_total", "1"]
    assert {engine for name, engine in found if name == "num_requests_running"} == {"0", "1"}


def test_what_the_engine_counts(start) -> None:
    steps = [0] * 14
    steps[0], steps[3], steps[13] = 2, 1, 1  # of 1, 1, 20 and 20,000 tokens
    stats = EngineStats(num_waiting=5, num_held=2, steps_by_tokens=steps, computed_tokens=20_022)
    server = start(FakeClient(stats=stats))
    lines = server.http.get("/metrics").text.splitlines()
    labels = 'engine="0",model_name="fake"'
    for line in (
        f'vllm:num_requests_waiting{{{labels}}} 5.0',
        f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} 3.0',
        f'vllm:num_requests_waiting_by_reason{{{labels},reason="deferred"}} 2.0',
        f'vllm:engine_sleep_state{{{labels},sleep_state="awake"}} 1.0',
        'vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="fake"} 2.0',
        'vllm:iteration_tokens_total_bucket{engine="0",le="32.0",model_name="fake"} 3.0',
        'vllm:iteration_tokens_total_bucket{engine="0",le="16384.0",model_name="fake"} 3.0',
        'vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="fake"} 4.0',
        f'vllm:iteration_tokens_total_sum{{{labels}}} 20022.0',
    ):  # fmt: skip
        assert line in lines


def test_preemptions_are_counted_per_request(start) -> None:
    class Preempting(FakeClient):
        def deltas(self, request: AddRequest) -> list[RequestDelta]:
            deltas = super().deltas(request)
            deltas[-1].num_preemptions = 3
            return deltas

    server = start(Preempting())
    server.chat()
    assert samples(server)["vllm:request_num_preemptions_sum", ""] == 3


@pytest.mark.parametrize(("stream", "mode"), [(True, "streaming"), (False, "non_streaming")])
def test_tool_parsing_is_counted(start, stream: bool, mode: str) -> None:
    call = b'<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    replies = iter([call, b"no call", call])
    client = FakeClient(script=lambda request: next(replies))
    server = start(client, parser=parser_for(None, "none", "hermes"))
    tools = [{"type": "function", "function": {"name": "f"}}]
    for fields in ({"tools": tools}, {"tools": tools}, {}):
        assert server.chat(stream=stream, **fields).status_code == 200
    text = server.http.get("/metrics").text
    for outcome in ("tool_call", "no_tool_call"):
        labels = (
            f'engine="0",mode="{mode}",model_name="fake",outcome="{outcome}",'
            'request_type="chat_completions"'
        )
        assert f"vllm:tool_call_parser_invocations_total{{{labels}}} 1.0" in text


def limited(**limits: int) -> FakeClient:
    """Runs eight requests at once."""
    return FakeClient(delay=0.05, queue=QueueLimit(SchedulerConfig(**limits)))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"max_num_queued_reqs": 2}, "max_num_queued_reqs"),
     ({"max_num_queued_tokens": 5}, "max_num_queued_tokens")],
)  # fmt: skip
def test_a_full_queue(start, stream: bool, limits: dict[str, int], reason: str) -> None:
    client = limited(**limits)
    server = start(client)
    with server.http.stream(
        "POST", "/v1/completions", json={"prompt": "ab", "n": 10, "stream": True}
    ):
        wait_until(lambda: len(client.running) == 10)
        refused = server.post("/v1/completions", prompt="ab", stream=stream, n=2)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    error = refused.json()["error"]
    assert error["type"] == "ServiceUnavailableError"
    assert f"--{reason.replace('_', '-')}" in error["message"]
    wait_until(lambda: not client.running)
    assert server.post("/v1/completions", prompt="ab", max_tokens=1).status_code == 200
    text = server.http.get("/metrics").text
    labels = f'engine="0",model_name="fake",reason="{reason}"'
    assert f"vllm:admission_rejections_total{{{labels}}} 2.0" in text
    # What was never taken in is no request that ended.
    assert 'finished_reason="abort",model_name="fake"} 10.0' in text


def test_root_path(start) -> None:
    """Whether the proxy in front takes it away or not."""
    server = start(FakeClient(), ServerConfig(root_path="/llm"))
    for prefix in ("", "/llm"):
        assert server.http.get(f"{prefix}/v1/models").status_code == 200
        assert server.post(f"{prefix}/v1/completions", prompt="a").status_code == 200
        page = server.http.get(f"{prefix}/docs").text
        for asset in (part.partition('"')[0] for part in page.split('src="')[1:]):
            assert asset.startswith("/llm/") and server.http.get(asset).status_code == 200
        document = server.http.get(f"{prefix}/openapi.json").json()
        assert {"url": "/llm"} in document["servers"]
        assert "/v1/models" in document["paths"]
    assert server.http.get("/llm/llm/v1/models").status_code == 404


def test_http_metrics_name_the_route(start) -> None:
    server = start(FakeClient())
    server.chat()
    server.http.get("/v1/models/fake")
    server.http.get("/scan/for/holes")
    text = server.http.get("/metrics").text
    for handler, method, status in (
        ("/v1/chat/completions", "POST", "2xx"), ("/v1/models/{name:path}", "GET", "2xx"),
        ("none", "GET", "4xx"),
    ):  # fmt: skip
        labels = f'handler="{handler}",method="{method}",status="{status}"'
        assert f"http_requests_total{{{labels}}} 1.0" in text


def test_methods_that_clients_make_up_share_a_label(start) -> None:
    server = start(FakeClient())
    for method in ("BREW", "WHEN"):
        assert server.http.request(method, "/health").status_code == 405
    text = server.http.get("/metrics").text
    assert 'method="other"' in text and "BREW" not in text and "WHEN" not in text


def test_head_is_get_without_a_body(shared: RunningServer) -> None:
    for path in ("/health", "/v1/models", "/v1/models/fake", "/version", "/nowhere"):
        got, headers = shared.http.get(path), shared.http.head(path)
        assert headers.status_code == got.status_code and headers.content == b""
        assert headers.headers["content-length"] == str(len(got.content))
    assert shared.http.head("/v1/chat/completions").status_code == 405
    assert 'method="HEAD",status="2xx"' in shared.http.get("/metrics").text


def test_request_ids_are_printable(shared: RunningServer) -> None:
    for sent, kept in ((b"abc-1", True), (b"a\x01b", False), (b"a\x85b", False)):
        reply = shared.http.get("/health", headers={b"x-request-id": sent})
        answered = dict(reply.headers.raw)[b"X-Request-Id"]
        assert (answered == sent) is kept and answered


def test_an_empty_model_name_is_the_list(shared: RunningServer) -> None:
    assert shared.http.get("/v1/models/").json()["object"] == "list"


def test_connections_do_not_wait_for_acknowledgements() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_metric_labels(start) -> None:
    server = start(FakeClient())
    server.chat()
    text = server.http.get("/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("vllm:"):
                assert sample.labels["model_name"] == "fake"
                assert sample.labels["engine"] == "0"


def test_probes(shared: RunningServer) -> None:
    health = shared.http.get("/health")
    assert (health.status_code, health.content) == (200, b"")
    assert shared.http.get("/ping").status_code == 200
    assert shared.http.post("/ping").status_code == 200
    assert shared.http.get("/version").json() == {"version": __version__}
    assert shared.http.get("/load").json() == {"server_load": 0}


@pytest.mark.parametrize(
    ("client", "ready", "live"),
    [
        (FakeClient(), (200, b""), 200),
        (
            FakeClient(stalled="The engine said nothing for 31 s."),
            (503, b'{"status":"stalled","cause":"The engine said nothing for 31 s."}'), 200,
        ),
        (FakeClient(state="dead", cause="odd"), (503, b'{"status":"dead","cause":"odd"}'), 503),
    ],
)  # fmt: skip
def test_liveness_is_not_readiness(start, client, ready, live) -> None:
    server = start(client)
    for path in ("/health", "/health/ready", "/v1/health", "/ping"):
        reply = server.http.get(path)
        assert (reply.status_code, reply.content) == ready
    reply = server.http.get("/health/live")
    assert (reply.status_code, reply.content) == (live, b"" if live == 200 else ready[1])


def test_metrics_tell_of_an_engine_that_stands_still(start) -> None:
    server = start(FakeClient(restarts=3, stalled="It stands.", silent_seconds=31.0))
    labels = '{engine="0",model_name="fake"}'
    text = server.http.get("/metrics").text
    for line in (
        f"pagoda:engine_stalled{labels} 1.0",
        f"pagoda:engine_restarts_total{labels} 3.0",
        f"pagoda:engine_heartbeat_age_seconds{labels} 31.0",
    ):
        assert line in text.splitlines()


def test_access_log(start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(FakeClient(), ServerConfig())
    with caplog.at_level("INFO", "pagoda.server.access"):
        server.chat()
        server.http.get("/nothing")
        server.http.get("/%0aINFO%20forged%1b[31m")
        server.http.get("/health")
    lines = [record.getMessage().partition(" - ")[2] for record in caplog.records]
    assert lines == [
        '"POST /v1/chat/completions HTTP/1.1" 200', '"GET /nothing HTTP/1.1" 404',
        '"GET /%0AINFO%20forged%1B%5B31m HTTP/1.1" 404',
    ]  # fmt: skip


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log of requests says; other tests may have turned other logs on."""
    return [r.getMessage() for r in caplog.records if r.name == "pagoda.server.requestlog"]


def test_request_log_tells_sizes_and_no_text(start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(FakeClient(), ServerConfig(enable_log_requests=True))
    with caplog.at_level("INFO", "pagoda.server.requestlog"):
        server.chat(messages=[{"role": "user", "content": "secret"}], temperature=0.5)
    assert "temperature=0.5" in caplog.text and "prompt tokens:" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("stream", [True, False])
def test_texts_in_the_log_when_asked(start, caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    config = ServerConfig(enable_log_requests=True, enable_log_outputs=True, max_log_len=8)
    client = FakeClient(script=lambda request: b"a secret reply", prefix_miss="new")
    server = start(client, config)
    with caplog.at_level("INFO", "pagoda.server.requestlog"):
        server.chat(messages=[{"role": "user", "content": "secret"}], stream=stream, n=2)
    received, prefix, *replies = logged(caplog)
    assert received.endswith("first prompt: 'user: se'")
    assert prefix.partition(": ")[2] == (
        "12 of 24 prompt tokens were cached; what follows is new: '\\nassista'"
    )
    assert [line.partition(", ")[2] for line in replies] == [
        f"choice {index}: stop after 15 tokens, text: 'a secret'" for index in range(2)
    ]


@pytest.mark.parametrize(
    ("miss", "words"),
    [(None, "that is all"), ("no_state", "no state of the recurrent"), ("evicted", "make room")],
)
def test_the_log_says_why_a_prefix_missed(start, caplog, miss: str | None, words: str) -> None:
    server = start(FakeClient(prefix_miss=miss), ServerConfig(enable_log_requests=True))
    with caplog.at_level("INFO", "pagoda.server.requestlog"):
        server.chat()
    _, prefix = logged(caplog)
    assert words in prefix and "hi" not in prefix.partition(";")[2].split()


def test_the_log_and_the_report_say_where_a_prefix_was(start, caplog) -> None:
    server = start(
        FakeClient(cached_tiers=Tiers(host=0, disk=2), prefix_miss=None),
        ServerConfig(enable_log_requests=True),
    )
    with caplog.at_level("INFO", "pagoda.server.requestlog"):
        usage = server.chat(return_prefix_report=True).json()["usage"]
    _, prefix = logged(caplog)
    assert "cached (2 from disk); that is all" in prefix
    details = usage["prompt_tokens_details"]
    report, cached = details["prefix_report"], details["cached_tokens"]
    assert report["reason"] == "all" and report["at_token"] is None
    assert report["cached"] == {"pool": cached - 2, "host": 0, "disk": 2}


def test_replies_are_logged_whole_without_a_limit(start, caplog) -> None:
    server = start(FakeClient(), ServerConfig(enable_log_outputs=True))
    with caplog.at_level("INFO", "pagoda.server.requestlog"):
        server.chat()
    (line,) = logged(caplog)
    assert line.endswith(f"text: {REPLY!r}") and "user:" not in line


def test_parameters_do_not_fill_the_log(start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(FakeClient(), ServerConfig(enable_log_requests=True))
    with caplog.at_level("INFO", "pagoda.server.requestlog"):
        server.chat(stop=["x" * 60_000])
    assert len(caplog.text) < 2000


def test_openapi(shared: RunningServer) -> None:
    document = shared.http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    post = document["paths"]["/v1/chat/completions"]["post"]
    request = post["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert request == "#/components/schemas/ChatCompletionRequest"
    assert "temperature" in schemas["ChatCompletionRequest"]["properties"]
    assert "prompt" in schemas["CompletionRequest"]["required"]

    def references(node: object) -> set[str]:
        if isinstance(node, dict):
            own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
            return own.union(*(references(value) for value in node.values()))
        return set().union(*map(references, node)) if isinstance(node, list) else set()

    missing = {r.rpartition("/")[2] for r in references(document)} - schemas.keys()
    assert not missing


def test_documentation_needs_no_internet(shared: RunningServer) -> None:
    for path in ("/docs", "/redoc"):
        page = shared.http.get(path).text
        assert "https://" not in page.replace("https://redoc", "")
        for asset in (part.partition('"')[0] for part in page.split('src="')[1:]):
            assert shared.http.get(asset).status_code == 200


def test_throughput_line() -> None:
    earlier = EngineStats(prompt_tokens=100, generation_tokens=50, num_steps=1)
    stats = EngineStats(
        num_running=3, num_waiting=1, prompt_tokens=350, generation_tokens=175, num_steps=9,
        prefix_queries=1000, prefix_hits=250, blocks_total=200, blocks_free=150,
    )  # fmt: skip
    assert throughput_line(0, earlier, stats, 10.0, gpu=False) == (
        "Engine 000: Avg prompt throughput: 25.0 tokens/s, "
        "Avg generation throughput: 12.5 tokens/s, Running: 3 reqs, Waiting: 1 reqs, "
        "KV cache usage: 25.0%, Prefix cache hit rate: 25.0%"
    )
    assert ", GPU KV cache usage: 25.0%," in throughput_line(0, earlier, stats, 10.0, gpu=True)


def test_no_throughput_line_when_idle_and_after_a_restart() -> None:
    idle = EngineStats(prompt_tokens=5, num_steps=2)
    assert throughput_line(0, idle, idle, 10.0, gpu=False) is None
    restarted = EngineStats(generation_tokens=10, num_steps=1)
    line = throughput_line(0, idle, restarted, 10.0, gpu=False)
    assert line is not None and "generation throughput: 1.0 tokens/s" in line


def test_transfer_line() -> None:
    earlier = EngineStats(kv_fetches=2, kv_fetch_seconds=1.0, kv_fetched_bytes=1 << 20)
    stats = EngineStats(
        kv_fetches=4, kv_fetch_seconds=1.5, kv_fetched_bytes=3 << 20, kv_sent_bytes=1 << 20
    )
    assert transfer_line(earlier, stats) == (
        "KV transfers: 2.00 MiB came, 1.00 MiB were fetched by others; "
        "2 prompts waited, 250 ms on average"
    )
    assert transfer_line(stats, stats) is None
    warmed = EngineStats(kv_fetched_bytes=1 << 20)
    assert transfer_line(None, warmed) is not None, "nobody waited"


@pytest.mark.parametrize("module", ["app", "launch", "lifecycle"])
def test_the_server_never_imports_torch(module: str) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None; "
        f"import pagoda.server.{module}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_launching_needs_no_web_framework() -> None:
    """The engine's process is started before FastAPI is imported."""
    code = (
        "import sys, pagoda.server.launch; "
        "sys.exit(any(name in sys.modules for name in ('fastapi', 'uvicorn', 'pydantic')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_routes_are_listed_for_who_debugs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("pagoda"), "propagate", True)
    listed = []
    for level in ("INFO", "DEBUG"):
        with caplog.at_level(level, "pagoda"):
            create_app(Fleet(), ServerConfig())
        listed.append([r.getMessage() for r in caplog.records if "Route: " in r.getMessage()])
    assert listed[0] == []
    assert "Route: /v1/chat/completions, Methods: POST" in listed[1]
    assert "Route: /health, Methods: GET" in listed[1]
    # They only say why there is no such thing here.
    assert not any("/v1/images/generations" in line for line in listed[1])
