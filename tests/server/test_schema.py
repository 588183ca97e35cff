"""Requests made from the OpenAPI document: no 5xx, and every answer is as the document says."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from pagoda.config.server import ServerConfig
from pagoda.core.messages import AddRequest, RequestDelta
from pagoda.engine.served.fleet import Fleet
from pagoda.server.app import create_app
from pagoda.server.routes.unserved import UNSERVED
from tests.server.conftest import running
from tests.server.fakes import FakeClient, FimTokenizer
from tests.server.mcp_server import make_server, over_http
from tests.server.test_pooling import PoolingClient, encoder

CONFIG = {
    # What a field means is beyond JSON Schema, and fields nobody knows are no error.
    "checks": {
        "enabled": False,
        "status_code_conformance": {"enabled": True},
        "content_type_conformance": {"enabled": True},
        "response_schema_conformance": {"enabled": True},
    },
    "generation": {"deterministic": True},
    "phases": {"coverage": {"enabled": False}},
}
EXAMPLES = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
POOLING = r"^/(v\d/|api/)?(embed|pool|classify|score|rerank)"
# Random ones are no PDFs; tests/server/test_extract_text.py has some that are.
schemathesis.serializer.alias("application/pdf", "application/octet-stream")
# Other names of routes that are here.
ALIASES = {
    "/chat/completions", "/chat/completions/input_tokens", "/completions", "/embeddings",
    "/models", "/ping", "/v1/health", "/health/ready", "/v1/score", "/v1/rerank", "/v2/rerank",
    "/reranking", "/v1/reranking", "/responses",
}  # fmt: skip
USER = [{"role": "user", "content": "hi"}]
STREAM: dict[str, Any] = {"stream": True, "max_tokens": 3, "timings_per_token": True}
TOLD: dict[str, Any] = {"return_token_ids": True, "prompt_logprobs": 1, "n": 2, "max_tokens": 3}
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
# Random requests are seldom right; these are.
VALID: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": USER, "logprobs": True, "top_logprobs": 2, **TOLD}),
    ("/v1/chat/completions", {"messages": USER, "logprobs": True, **STREAM, **USAGE}),
    ("/v1/chat/completions/batch", {"messages": [USER, USER], "logprobs": True}),
    ("/v1/chat/completions/render", {"messages": USER, "stop": "x", "seed": 1}),
    ("/v1/chat/completions/input_tokens", {"messages": USER}),
    ("/apply-template", {"messages": USER}),
    ("/v1/completions", {"prompt": ["a", "b"], "logprobs": 2, "echo": True, **TOLD}),
    ("/v1/completions", {"prompt": [97], "logprobs": 1, **STREAM, **USAGE}),
    ("/v1/completions/render", {"prompt": ["a", "b"], "logit_bias": {"5": 1}}),
    ("/completion", {"prompt": "a", "n_probs": 2, "return_tokens": True}),
    ("/completion", {"prompt": "a", "n_probs": 2, "post_sampling_probs": True}),
    ("/completion", {"prompt": ["a", [98, "c"]], "n_predict": 2, "stop": ["x"]}),
    ("/completion", {"prompt": "a", "response_fields": ["content", "timings/prompt_n"]}),
    ("/completions", {"prompt": "a", "n_probs": 1, "return_progress": True, **STREAM}),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c"}]}),
    ("/inference/v1/generate", {"token_ids": [97], "sampling_params": {"logprobs": 1}}),
    ("/inference/v1/generate", {"token_ids": [97], "output_mode": "text", **STREAM, **USAGE}),
    ("/inference/v1/abort_requests", {"request_ids": ["a"]}),
    ("/invocations", {"prompt": "a"}),
    ("/v1/responses", {"input": "hi", "store": False}),
    ("/v1/responses", {"input": "hi", "store": False, "stream": True}),
    ("/v1/responses/input_tokens", {"input": "hi"}),
    ("/v1/responses/render", {"input": "hi"}),
    ("/v1/messages", {"messages": USER, "max_tokens": 9}),
    ("/v1/messages", {"messages": USER, "max_tokens": 9, "stream": True}),
    ("/v1/messages/count_tokens", {"messages": USER}),
    ("/v1/messages/render", {"messages": USER, "max_tokens": 9}),
    ("/api/chat", {"model": "fake", "messages": USER, "logprobs": True, "stream": False}),
    ("/api/chat", {"model": "fake", "messages": []}),
    ("/api/generate", {"model": "fake", "prompt": "a", "stream": False}),
    ("/api/generate", {"model": "fake", "prompt": "a", "suffix": "b", "stream": False}),
    ("/api/show", {"model": "fake"}),
    ("/api/embed", {"model": "fake", "input": ["a", "b"]}),
    ("/api/embeddings", {"model": "fake", "prompt": "a"}),
    ("/tokenize", {"prompt": "a", "return_token_strs": True}),
    ("/tokenize", {"content": "ä", "with_pieces": True}),
    ("/detokenize", {"tokens": [97]}),
    ("/v1/embeddings", {"input": ["a", "b"]}),
    ("/v1/embeddings", {"input": "a", "encoding_format": "base64"}),
    ("/embedding", {"content": "a"}),
    ("/pooling", {"input": "a", "task": "embed"}),
    ("/score", {"text_1": "a", "text_2": ["b", "c"]}),
    ("/rerank", {"query": "a", "documents": ["b", {"text": "c"}]}),
    ("/rerank", {"query": "a", "texts": ["b", "c"], "return_text": True}),
]


class BothClient(PoolingClient):
    """Of a model that writes and gives vectors."""

    def deltas(self, request: AddRequest) -> list[RequestDelta]:
        if request.kind == "pool":
            return super().deltas(request)
        return FakeClient.deltas(self, request)


def document() -> Any:
    app = create_app(Fleet(), ServerConfig())
    config = schemathesis.Config.from_dict(CONFIG)
    return schemathesis.openapi.from_dict(app.openapi(), config=config)


DOCUMENT = document()


@pytest.fixture(scope="module")
def writer() -> Iterator[str]:
    client = BothClient(abilities={"vocab_size": FimTokenizer.vocab_size, "hidden_size": 4})
    with running(client, tokenizer=FimTokenizer()) as server:
        yield server.url


@pytest.fixture(scope="module")
def embedder() -> Iterator[str]:
    with running(encoder()) as server:
        yield server.url


def is_left_out(context: Any) -> bool:
    method, path = context.operation.method.upper(), context.operation.path
    # One that never ends, those that would unload the model, one that fetches others, and those
    # that connect to other servers.
    if path.startswith(("/models/", "/mcp/")) or path in ("/api/pull", "/tools"):
        return True
    return path in ALIASES or f"{method} {path}" in UNSERVED


def check(case: schemathesis.Case, url: str) -> None:
    response = case.call_and_validate(base_url=url)
    assert response.status_code < 500, response.text
    if response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
        check_events(case.path, response.text)


def check_events(path: str, text: str) -> None:
    """schemathesis reads no JSON within events."""
    raw = DOCUMENT.raw_schema
    content = raw["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]
    _, told = content["schema"]["properties"]["data"]["anyOf"]
    validator = jsonschema_rs.validator_for(
        {**told["contentSchema"], "components": raw["components"]}
    )
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines
    for line in lines:
        if line != "[DONE]":
            validator.validate(json.loads(line))


@DOCUMENT.exclude(is_left_out).parametrize()
@EXAMPLES
def test_a_model_that_writes(case: schemathesis.Case, writer: str) -> None:
    check(case, writer)


@DOCUMENT.include(path_regex=POOLING).exclude(is_left_out).parametrize()
@EXAMPLES
def test_a_model_that_embeds(case: schemathesis.Case, embedder: str) -> None:
    check(case, embedder)


@pytest.mark.parametrize(("path", "body"), VALID)
def test_good_answers(writer: str, path: str, body: dict[str, Any]) -> None:
    response = httpx.post(writer + path, json=body, timeout=20)
    assert response.status_code == 200, response.text
    if body.get("stream"):
        check_events(path, response.text)
    else:
        DOCUMENT[path]["POST"].validate_response(response)


def test_every_route_that_answers_is_tried() -> None:
    bodies = {
        path
        for path, methods in DOCUMENT.raw_schema["paths"].items()
        if "requestBody" in methods.get("post", {})
    }
    # A classifier is a third kind of model, PDFs and forms with sounds are no JSON, tools are tried
    # below, and adapters by `test_adapters`.
    assert (
        bodies
        - ALIASES
        - {"/classify", "/api/pull", "/extract-text", "/mcp/tools", "/mcp/call", "/tools"}
        - {"/audio/transcriptions", "/v1/audio/transcriptions", "/v1/audio/translations"}
        - {f"/models/{verb}" for verb in ("load", "unload", "plan", "remove")}
        - {"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/lora-adapters"}
        == {path for path, _ in VALID} - ALIASES
    )


def test_tools_of_other_servers(writer: str) -> None:
    with over_http(make_server()) as url:
        own = {"id": "0123456789", "name": "own", "url": url}
        listed = httpx.post(writer + "/mcp/tools", json={"server": own}, timeout=20)
        DOCUMENT["/mcp/tools"]["POST"].validate_response(listed)
        (wait,) = (tool for tool in listed.json()["tools"] if tool["name"] == "wait")
        body = {
            "server": own,
            "tool": "wait",
            "digest": wait["digest"],
            "arguments": {"seconds": 0},
        }
        called = httpx.post(writer + "/mcp/call", json=body, timeout=20)
    check_events("/mcp/call", called.text)
    servers = httpx.get(writer + "/mcp/servers", timeout=20)
    DOCUMENT["/mcp/servers"]["GET"].validate_response(servers)
