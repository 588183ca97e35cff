"""Bad input: a clear error in one schema, and nobody else is harmed."""

import asyncio
import json
import shutil
import socket
import subprocess
from typing import Any

import httpx
import openai
import pytest

from pagoda.base.errors import CapacityError
from pagoda.config.server import ServerConfig
from pagoda.core.messages import AddRequest, RequestDelta
from pagoda.server.errors import ApiError, to_api_error
from pagoda.server.http.middleware import BodyLimitMiddleware
from tests.server.conftest import RunningServer
from tests.server.fakes import REPLY, FakeClient

USER = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def response_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def error_of(reply: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    assert set(reply.json()) == {"error"}
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert error["message"]
    return error


def post_raw(server: RunningServer, content: bytes, **headers: str) -> httpx.Response:
    headers = {"content-type": "application/json", **headers}
    return server.http.post("/v1/chat/completions", content=content, headers=headers)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"a":}',
        b"\xff\xfe",
        b'{"temperature": NaN}',
        b'{"a": "\\ud800"}',
        b'{"a": "\xff"}',
    ],
)
def test_invalid_json(shared: RunningServer, body: bytes) -> None:
    assert "JSON" in error_of(post_raw(shared, body))["message"]


def test_body_that_is_no_object(shared: RunningServer) -> None:
    assert "object" in error_of(post_raw(shared, b"[1]"))["message"]


def test_deep_json(shared: RunningServer) -> None:
    error = error_of(post_raw(shared, b'{"messages":' + b"[" * 10_000 + b"]" * 10_000 + b"}"))
    assert "nested" in error["message"]


def test_json_deep_in_an_unknown_field(shared: RunningServer) -> None:
    """Deep, but not too deep to parse: every later step must stand it too."""
    for depth in (50, 400, 900, 1500):
        body = {"messages": USER, "chat_template_kwargs": {}, "x": None, "max_tokens": 1}
        raw = json.dumps(body).replace("{}", '{"x":' + "[" * depth + "]" * depth + "}")
        assert post_raw(shared, raw.encode()).status_code in (200, 400)


def test_content_type(shared: RunningServer) -> None:
    reply = shared.http.post(
        "/v1/chat/completions", content=json.dumps({"messages": USER}),
        headers={"content-type": "text/plain"},
    )  # fmt: skip
    assert "application/json" in error_of(reply)["message"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
def test_curl_with_a_body_and_no_type(shared: RunningServer, path: str) -> None:
    """As tutorials of Ollama and llama-server have it."""
    body = json.dumps({"model": "fake", "messages": USER, "stream": False})
    done = subprocess.run(
        ["curl", "-s", "-w", "%{http_code}", f"{shared.url}{path}", "-d", body],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.endswith("200")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [*USER, {"role": "user", "content": [{"text": "x"}]}]},
         "messages.1.content.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": "nan"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 10**30}, "top_k"),
        ({"priority": 2**63}, "priority"),
        ({"truncate_prompt_tokens": 2**64}, "truncate_prompt_tokens"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"repetition_penalty": 1e300}, "repetition_penalty"),
        ({"bad_words": ["x"] * 2000}, "bad_words"),
        ({"bad_words": ["x" * 100_000]}, "bad_words"),
        ({"stop": ["x" * 100_000]}, "stop"),
        ({"allowed_token_ids": [7] * 10_000, "n": 128}, None),
        ({"messages": [{"role": "user", "content": None}]}, "messages"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"n": 0}, "n"),
        ({"n": 1_000_000}, "n"),
        ({"n": 1.5}, "n"),
        ({"seed": 2**70}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": [5]}, "stop.0"),
        ({"stop": ["x"] * 1000}, "stop"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"allowed_token_ids": [999999]}, "allowed_token_ids"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 10_000}, "logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": "sometimes", "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": "required", "tools": TOOLS}, "tool_choice"),  # this model has no calls
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": response_format({"not": {}})}, "response_format"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"choice": "a"}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"best_of": 2}, "best_of"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ],
)  # fmt: skip
def test_bad_field_is_named(
    shared: RunningServer, fields: dict[str, Any], param: str | None
) -> None:
    assert error_of(shared.chat(**fields))["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", [1]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": ["a"] * 2000}, "prompt"),
        ({"prompt": ["a"] * 100, "n": 100}, "n"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "prompt_embeds": "AAAA"}, "prompt_embeds"),
    ],
)
def test_bad_completion_field_is_named(
    shared: RunningServer, fields: dict[str, Any], param: str
) -> None:
    assert error_of(shared.post("/v1/completions", **fields))["param"] == param


def test_values_that_mean_the_default(shared: RunningServer) -> None:
    reply = shared.chat(
        best_of=1, use_beam_search=False, response_format={"type": "text"}, tool_choice="auto",
        temperature=None, max_tokens=None, stop=None, tools=[], modalities=["text"], audio=None,
        stream_options=None, logit_bias=None, user="me", metadata={"a": "b"}, store=False,
    )  # fmt: skip
    assert reply.status_code == 200
    assert reply.json()["choices"][0]["message"]["content"] == REPLY


def test_many_errors_are_counted_and_cut(shared: RunningServer) -> None:
    fields = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
              "repetition_penalty", "seed", "n", "min_tokens", "max_tokens", "stream")  # fmt: skip
    error = error_of(shared.chat(**dict.fromkeys(fields, "x")))
    assert error["message"].startswith(f"{len(fields)} fields are wrong: ")
    assert error["message"].count("must be") == 10


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"temperature": "hot"}, "temperature must be a number, not 'hot'."),
        ({"top_p": {}}, "top_p must be a number, not an object."),
        ({"n": 1.5}, "n must be a whole number, not 1.5."),
        ({"stream": "maybe"}, "stream must be true or false, not 'maybe'."),
        ({"stop": 5}, "stop must be text or a list, not 5."),
        ({"stop": ["a", 5]}, "stop.1 must be text, not 5."),
        ({"messages": [{"content": "hi"}]}, "messages.0.role is missing."),
        ({"messages": "x" * 50}, f"messages must be a list, not {'x' * 40!r}... (50 characters)."),
    ],
)
def test_a_wrong_field_is_told_in_plain_words(
    shared: RunningServer, fields: dict[str, Any], told: str
) -> None:
    assert error_of(shared.chat(**fields))["message"] == told


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [5] * 300_000}, "messages.0"),
        ({"messages": [{"role": "user", "content": [5] * 300_000}]}, "messages.0.content.0"),
        ({"stop": [5] * 300_000}, "stop.0"),
        ({"bad_words": [5] * 300_000}, "bad_words.0"),
        ({"tools": [5] * 300_000}, "tools.0"),
        ({"logit_bias": {f"k{i}": "x" for i in range(100_000)}}, None),
    ],
)
def test_a_million_errors_cost_no_more_than_one(
    shared: RunningServer, fields: dict[str, Any], param: str | None
) -> None:
    error = error_of(shared.chat(**fields))
    assert error["param"] == param
    assert len(error["message"]) < 400


@pytest.mark.parametrize("field", ["guided_grammar", "guided_json", "guided_regex"])
def test_a_constraint_under_another_name_is_not_ignored(shared: RunningServer, field: str) -> None:
    error = error_of(shared.chat(**{field: "root ::= [a-z]"}))
    assert error["param"] == field


def test_unknown_fields_are_ignored_with_one_line(
    shared: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", "pagoda"):
        reply = shared.chat(guidance={}, **{"evil\nfield": 1})
    assert reply.status_code == 200
    lines = [r.getMessage() for r in caplog.records if "unknown fields" in r.getMessage()]
    assert len(lines) == 1
    assert "guidance" in lines[0] and "\n" not in lines[0]


EVERY_BODY: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/completions": {"prompt": "a"},
    "/completion": {"prompt": "a"},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5},
    "/v1/responses": {"input": "a"},
    "/inference/v1/generate": {"token_ids": [1], "sampling_params": {"max_tokens": 2}},
    "/tokenize": {"prompt": "a"},
    "/apply-template": {"messages": [{"role": "user", "content": "a"}]},
    "/invocations": {"prompt": "a"},
}


@pytest.mark.parametrize("path", EVERY_BODY)
def test_a_header_names_unknown_fields(shared: RunningServer, path: str) -> None:
    plain = shared.post(path, **EVERY_BODY[path])
    reply = shared.post(path, **EVERY_BODY[path], max_token=5, **{"zu\nviel\x7fü": 1})
    assert plain.status_code == reply.status_code == 200
    assert "Pagoda-Unknown-Fields" not in plain.headers
    told = reply.headers["Pagoda-Unknown-Fields"]
    assert told.isascii() and told.isprintable()
    assert json.loads(told) == ["max_token", "zu\nviel\x7fü"]


def test_unknown_fields_of_streams_of_errors_and_of_objects_within(shared: RunningServer) -> None:
    with shared.http.stream("POST", "/v1/chat/completions", json={
        "messages": [{"role": "user", "content": "a"}], "stream": True, "max_token": 5,
    }) as reply:  # fmt: skip
        assert reply.headers["Pagoda-Unknown-Fields"] == '["max_token"]'
    reply = shared.chat(model="gpt-x", max_token=5)
    assert error_of(reply, 404) and reply.headers["Pagoda-Unknown-Fields"] == '["max_token"]'
    sampling = {"max_tokens": 2, "top_pp": 1}
    reply = shared.post("/inference/v1/generate", token_ids=[1], sampling_params=sampling, best=1)
    assert json.loads(reply.headers["Pagoda-Unknown-Fields"]) == ["best", "sampling_params.top_pp"]


def test_many_and_long_unknown_fields_make_a_short_header(shared: RunningServer) -> None:
    reply = shared.chat(**{f"field{number:03}": 1 for number in range(500)})
    names = json.loads(reply.headers["Pagoda-Unknown-Fields"])
    assert names == [f"field{number:03}" for number in range(10)]
    reply = shared.chat(**{f"{number}" + "\U0001f600" * 5000: 1 for number in range(20)})
    told = reply.headers["Pagoda-Unknown-Fields"]
    assert reply.status_code == 200 and len(told) <= 1000
    assert json.loads(told) == ["0" + "\U0001f600" * 63]


def test_unknown_model(shared: RunningServer) -> None:
    error = error_of(shared.chat(model="gpt-x"), 404)
    assert error["param"] == "model" and error["type"] == "NotFoundError"
    assert "`gpt-x` does not exist. Served here: fake, fake-alias." in error["message"]
    assert "--alias" in error["message"] and "--any-model-name" in error["message"]


def test_any_model_name(start) -> None:
    server = start(FakeClient(), ServerConfig(any_model_name=True))
    reply = server.chat(model="gpt-4o")
    assert (reply.status_code, reply.json()["model"]) == (200, "gpt-4o")
    assert server.post("/tokenize", model="gpt-4o", prompt="a").status_code == 200
    assert server.http.get("/props?model=gpt-4o").status_code == 200
    # What changes a model, or tells of one, wants its name.
    error_of(server.http.get("/v1/models/gpt-4o"), 404)
    error_of(server.post("/models/unload", model="gpt-4o"), 404)


@pytest.mark.parametrize("length", [2049, 10_000, 10_000_000])
def test_prompt_too_long(shared: RunningServer, length: int) -> None:
    message = error_of(shared.chat(messages=[{"role": "user", "content": "x" * length}]))["message"]
    assert message.startswith("This model's maximum context length is 2048 tokens. However, ")


def test_output_too_long(shared: RunningServer) -> None:
    assert "maximum context length" in error_of(shared.chat(max_tokens=2048))["message"]


def test_truncation_makes_it_fit(shared: RunningServer) -> None:
    long = [{"role": "user", "content": "x" * 50_000}]
    reply = shared.chat(messages=long, truncate_prompt_tokens=100, max_tokens=1)
    assert reply.json()["usage"]["prompt_tokens"] == 100


def test_body_limit(start) -> None:
    server = start(FakeClient(), ServerConfig(max_body_bytes=10_000))
    assert error_of(server.chat(x="y" * 20_000), 413)["type"] == "RequestTooLargeError"

    def chunks():
        yield b'{"x": "'
        for _ in range(20):
            yield b"y" * 1000

    reply = server.http.post(
        "/v1/chat/completions", content=chunks(), headers={"content-type": "application/json"}
    )
    error_of(reply, 413)
    assert server.chat().status_code == 200


async def test_body_that_stops_arriving() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await receive()

    async def receive() -> dict[str, Any]:
        if first:
            return first.pop()
        return await asyncio.Future()

    first = [{"type": "http.request", "body": b"{", "more_body": True}]
    limited = BodyLimitMiddleware(app, max_bytes=100, timeout=0.01)
    with pytest.raises(ApiError) as raised:
        await limited({"type": "http", "headers": []}, receive, lambda message: None)
    assert raised.value.status == 408


def test_unknown_path_and_method(shared: RunningServer) -> None:
    error_of(shared.http.get("/v1/nothing"), 404)
    error_of(shared.http.get("/v1/chat/completions"), 405)


def test_no_chat_template(start) -> None:
    server = start(FakeClient(), chat_template=None)
    assert "--chat-template" in error_of(server.chat())["message"]
    assert server.post("/v1/completions", prompt="a").status_code == 200


KEYED = ServerConfig(api_key=("one", "two"))


def test_api_key(start) -> None:
    server = start(FakeClient(), KEYED)
    assert error_of(server.chat(), 401)["type"] == "AuthenticationError"
    for headers in (
        {"authorization": "Bearer three"},
        {"authorization": "Basic one"},
        {"authorization": "one"},
        {"x-api-key": "on"},
    ):
        error_of(server.http.get("/v1/models", headers=headers), 401)
    for headers in (
        {"authorization": "Bearer two"},
        {"x-api-key": "one"},
        {"authorization": "Bearer dummy", "x-api-key": "one"},
    ):
        assert server.http.get("/v1/models", headers=headers).status_code == 200
    for path in ("/health", "/ping", "/metrics"):
        assert server.http.get(path).status_code == 200
    for path in ("/version", "/load", "/tokenize", "/docs", "/openapi.json", "/nothing"):
        error_of(server.http.get(path), 401)


def test_api_key_of_the_environment(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGODA_API_KEY", "secret")
    server = start(FakeClient())
    error_of(server.chat(), 401)
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret")
    assert client.models.list().data


def test_preflight_needs_no_key(start) -> None:
    server = start(
        FakeClient(), ServerConfig(api_key=("k",), allowed_origins=("https://a.example",))
    )
    preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
    reply = server.http.options("/v1/chat/completions", headers=preflight)
    assert reply.headers["access-control-allow-origin"] == "https://a.example"
    reply = server.http.options(
        "/v1/chat/completions", headers={**preflight, "origin": "https://b.example"}
    )
    assert "access-control-allow-origin" not in reply.headers


def test_no_cors_by_default(shared: RunningServer) -> None:
    reply = shared.http.get("/v1/models", headers={"origin": "https://a.example"})
    assert "access-control-allow-origin" not in reply.headers


class RefusingClient(FakeClient):
    """Finds only while it runs that a request asks for the impossible."""

    def deltas(self, request: AddRequest) -> list[RequestDelta]:
        reason = {"finish_reason": "error", "error": "No token left.", "bad_request": True}
        return [RequestDelta(req_id=request.req_id, **reason)]


def test_refusal_by_the_engine(start) -> None:
    server = start(RefusingClient())
    error = error_of(server.chat())
    assert (error["type"], error["message"]) == ("BadRequestError", "No token left.")
    assert '"code":400' in server.chat(stream=True).text


def test_client_that_leaves_in_its_body(start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(FakeClient(), ServerConfig())
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with caplog.at_level("INFO", "pagoda"):
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as client:
            client.sendall(head + b"Content-Length: 100\r\n\r\n{")
        while not caplog.records:
            server.http.get("/health")
    assert [(r.levelname, r.getMessage()[-3:]) for r in caplog.records] == [("INFO", "499")]


def test_failure_of_one_request(start) -> None:
    def script(request):
        if request.prompt_token_ids[0] == ord("x"):
            raise ZeroDivisionError("a bug")
        return REPLY.encode()

    server = start(FakeClient(script=script))
    error = error_of(server.post("/v1/completions", prompt="x"), 500)
    assert "a bug" not in error["message"]
    assert server.post("/v1/completions", prompt="y").status_code == 200


def test_a_lack_of_room_is_said_and_may_pass():
    error = to_api_error(CapacityError("A picture could not be handed to the engine: make room."))
    assert (error.status, str(error)[:9], "Retry-After" in error.headers) == (
        503,
        "A picture",
        True,
    )
