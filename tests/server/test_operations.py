"""Probes, metrics, documents, log lines, and what the server process imports."""

import socket
import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagoda.config.server import ServerConfig
from pagoda.core.messages import EngineStats
from pagoda.server.listen import listen
from pagoda.server.stats import throughput_line
from pagoda.version import __version__
from tests.server.conftest import RunningServer
from tests.server.fakes import FakeClient

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
    server = start(FakeClient())
    server.chat()
    server.chat(stream=True, max_tokens=3, n=2)
    found = samples(server)
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


def test_request_ids_are_printable(shared: RunningServer) -> None:
    for sent, kept in ((b"abc-1", True), (b"a\x01b", False), (b"a\x85b", False)):
        reply = shared.http.get("/health", headers={b"x-request-id": sent})
        answered = dict(reply.headers.raw)[b"x-request-id"]
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


def test_request_log_tells_sizes_and_no_text(start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(FakeClient(), ServerConfig(enable_log_requests=True))
    with caplog.at_level("INFO", "pagoda.server.requestlog"):
        server.chat(messages=[{"role": "user", "content": "secret"}], temperature=0.5)
    assert "temperature=0.5" in caplog.text and "prompt tokens:" in caplog.text
    assert "secret" not in caplog.text


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
