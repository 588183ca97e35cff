"""Hostile requests: each is refused in the API's own words, and nobody else is harmed."""

import gzip
import json
import socket
import subprocess
import sys
from typing import Any

import pytest

from pagoda.config.server import ServerConfig
from pagoda.server.http.auth import OPEN_PATHS
from tests.server.conftest import RunningServer
from tests.server.fakes import REPLY, FakeClient
from tests.server.test_attacks_web import routes_with_bodies
from tests.server.test_errors import error_of

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]


def head(target: str = "/version", *lines: bytes) -> bytes:
    request = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode()
    return request + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def refused(answer: bytes) -> dict[str, Any]:
    """The error of a reply that was written before any middleware was reached."""
    top, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in top.lower()
    error: dict[str, Any] = json.loads(body)["error"]
    assert error["code"] == status_of(answer)
    return error


@pytest.mark.parametrize(
    "target",
    ["/docs-assets/../../../../../../etc/passwd", "/docs-assets/..%2f..%2f..%2f..%2fetc/passwd",
     "/docs-assets/%2e%2e/%2e%2e/%2e%2e/etc/passwd", "/docs-assets/....//....//etc/passwd",
     "/docs-assets//etc/passwd", "/docs-assets/..\\..\\etc\\passwd", "/../etc/passwd",
     "/docs-assets/%252e%252e/etc/passwd", "/docs-assets/swagger-ui.css%00.png",
     "/v1/models/../../../../etc/passwd", "/v1/models/%2fetc%2fpasswd", "//etc/passwd"],
)  # fmt: skip
def test_paths_lead_to_no_file(shared: RunningServer, target: str) -> None:
    answer = shared.exchange(head(target))
    assert status_of(answer) in (400, 404)
    assert b"root:" not in answer


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "file:///etc/passwd", "\0"])
def test_a_models_name_is_no_path(shared: RunningServer, name: str) -> None:
    assert "root:" not in str(error_of(shared.chat(model=name), 404))


@pytest.mark.parametrize("kind", ["image_url", "input_image", "audio_url", "video_url"])
@pytest.mark.parametrize(
    "scheme", ["http://{}:{}/x.png", "file:///etc/passwd", "data:image/png;base64,"]
)
def test_media_is_neither_fetched_nor_opened(shared: RunningServer, kind: str, scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as inside:
        inside.setblocking(False)
        url = scheme.format(*inside.getsockname())
        part = {"type": kind, kind: url if kind == "input_image" else {"url": url}}
        error = error_of(shared.chat(messages=[{"role": "user", "content": [part]}]))
        assert "root:" not in error["message"]
        with pytest.raises(BlockingIOError):
            inside.accept()


def test_deep_json_on_every_route(shared: RunningServer) -> None:
    for path in routes_with_bodies(shared, forms=False):
        for deep in (b"[" * 100_000, b'{"a":' * 100_000):
            for body in (deep, b'{"messages":' + deep, b'{"input":' + deep):
                reply = shared.http.post(
                    path, content=body, headers={"content-type": "application/json"}
                )
                assert reply.status_code == 400, path


@pytest.mark.parametrize(
    "number",
    ["1e999", "-1e999", "9" * 5000, "-" + "9" * 5000, "1" + "0" * 400, "1e-999999",
     "0." + "0" * 5000 + "1"],
    ids=["inf", "-inf", "long", "-long", "beyond", "tiny", "fraction"],
)  # fmt: skip
@pytest.mark.parametrize(
    "field",
    ["max_tokens", "temperature", "seed", "n", "top_k", "top_p", "priority", "logprobs",
     "min_tokens", "prompt"],
)  # fmt: skip
def test_numbers_beyond_all_bounds(shared: RunningServer, field: str, number: str) -> None:
    reply = shared.http.post(
        "/v1/completions",
        content=f'{{"prompt": "a", "{field}": {number}}}',
        headers={"content-type": "application/json"},
    )
    assert reply.status_code in (200, 400), reply.text
    assert len(reply.content) < 20_000


def test_bodies_are_never_unpacked(shared: RunningServer) -> None:
    bomb = gzip.compress(json.dumps({"messages": USER, "x": "0" * 10_000_000}).encode())
    for coding in ("gzip", "deflate", "br", "zstd", "gzip, gzip", "GZIP"):
        reply = shared.http.post(
            CHAT, content=bomb,
            headers={"content-type": "application/json", "content-encoding": coding},
        )  # fmt: skip
        assert error_of(reply, 415)["type"] == "UnsupportedMediaTypeError"


def test_base64_in_every_place_that_could_hold_it(shared: RunningServer) -> None:
    bomb = "A" * 5_000_000
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{bomb}"}}]
    error_of(shared.chat(messages=[{"role": "user", "content": parts}]))
    error_of(shared.post("/v1/completions", prompt="a", prompt_embeds=bomb))


@pytest.mark.parametrize(
    "request_bytes",
    [head("/version", b"X: " + b"a" * 100_000), head("/" + "a" * 100_000),
     head("/version", *(b"X-%d: a" % number for number in range(10_000))),
     b"GET /version HTTP/1.1\r\n" + b"a" * 100_000],
    ids=["header", "target", "count", "name"],
)  # fmt: skip
def test_large_heads_are_refused(shared: RunningServer, request_bytes: bytes) -> None:
    with shared.connect() as connection:
        try:
            connection.sendall(request_bytes)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        except ConnectionError:  # it left with our bytes unread, and took its words along
            answer = b""
    assert answer == b"" or refused(answer)["code"] == 431
    assert shared.http.get("/version").status_code == 200


@pytest.mark.parametrize("length", [b"1000000000000", b"9" * 400])
def test_a_declared_length_is_believed_before_a_byte_is_read(
    shared: RunningServer, length: bytes
) -> None:
    request = head(CHAT, b"Content-Type: application/json", b"Content-Length: " + length)
    answer = shared.exchange(request.replace(b"GET", b"POST"))
    assert status_of(answer) in (400, 413)


@pytest.mark.parametrize(
    "line",
    [b"Content-Length: -1", b"Content-Length: 1\r\nContent-Length: 2", b"Content-Length: 1x",
     b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked, identity", b"X : y",
     b"X: a\0b", b"X: a\rb", b"no colon"],
)  # fmt: skip
def test_ambiguous_requests_are_refused(shared: RunningServer, line: bytes) -> None:
    """What a proxy might read otherwise, so that one request hides in another."""
    answer = shared.exchange(head("/version", line))
    assert 400 <= status_of(answer) < 600 and status_of(answer) != 500
    assert refused(answer)["message"]


@pytest.mark.parametrize(
    "chunks", [b"5\r\nabcdeXX0\r\n\r\n", b"zz\r\n", b"-1\r\n", b"f" * 30 + b"\r\n"]
)
def test_broken_chunks_are_refused(shared: RunningServer, chunks: bytes) -> None:
    request = head(CHAT, b"Content-Type: application/json", b"Transfer-Encoding: chunked")
    assert status_of(shared.exchange(request.replace(b"GET", b"POST") + chunks)) == 400


SMUGGLED = (
    "/health/../v1/models", "/v1/models/", "//v1/models", "/./v1/models", "/V1/models",
    "/v1/models?a=/health", "/v1/models#/health", "/v1/models;/health", "/%76%31/models",
    "/health/", "/health%2f..%2fv1/models", "/metrics/../v1/models", "/ping%00/v1/models",
    "http://localhost/v1/models", "http://localhost/health/../v1/models", "/v1/models%20",
)  # fmt: skip


@pytest.mark.parametrize("target", SMUGGLED)
@pytest.mark.parametrize("host", [b"localhost", b"localhost/health?", b"localhost/health#"])
def test_no_spelling_of_a_path_goes_past_the_key(start, target: str, host: bytes) -> None:
    config = ServerConfig(api_key=("k",), host="0.0.0.0")  # any Host is taken
    request = head(target).replace(b"Host: localhost", b"Host: " + host)
    answer = start(FakeClient(), config).exchange(request)
    assert status_of(answer) in (400, 401, 404, 307)
    assert b"fake" not in answer


def test_the_paths_that_need_no_key(start) -> None:
    server = start(FakeClient(), ServerConfig(api_key=("k",)))
    document = server.http.get("/openapi.json", headers={"x-api-key": "k"}).json()
    assert sorted(OPEN_PATHS) == [
        "/health", "/health/live", "/health/ready", "/metrics", "/ping", "/v1/health",
    ]  # fmt: skip
    # Routes outside of the document: OpenAPI itself, its pages and their assets.
    paths = {
        *document["paths"],
        "/openapi.json",
        "/docs",
        "/redoc",
        "/docs-assets/x",
        "/",
        "/nothing",
    }
    for path in paths:
        for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
            status = server.http.request(method, path.replace("{", "").replace("}", "")).status_code
            assert (status == 401) is (path not in OPEN_PATHS), (method, path)


def test_a_root_path_moves_the_open_paths_alone(start) -> None:
    server = start(FakeClient(), ServerConfig(api_key=("k",), root_path="/llm"))
    for path, status in (
        ("/llm/health", 200), ("/health", 200), ("/llm/v1/models", 401), ("/v1/models", 401),
        ("/llm/llm/health", 401), ("/llmhealth", 401), ("/llm/health/x", 401),
    ):  # fmt: skip
        assert server.http.get(path).status_code == status, path


ESCAPES = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ 7 * 7 }}", "{% for x in range(9**9) %}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}", "{{ raise_exception('x') }}",
    "{%- set x = messages.pop() -%}", "${7*7}", "#{7*7}", "{{ self }}",
)  # fmt: skip


@pytest.mark.parametrize("text", ESCAPES)
def test_messages_are_text_and_no_template(start, text: str) -> None:
    client = FakeClient()
    server = start(client)
    messages = [{"role": "user", "content": text, "name": text}]
    tools = [{"type": "function", "function": {"name": "f", "description": text}}]
    assert server.chat(messages=messages, tools=tools).status_code == 200
    prompt = bytes(client.requests[0].prompt_token_ids).decode()
    assert prompt == f"user: {text}\nassistant: "


@pytest.mark.parametrize(
    "variables",
    [{"range": 5}, {"namespace": "x"}, {"raise_exception": None}, {"tokenize": True},
     {"self": {}}, {"loop": 1, "caller": 2}, {"return_dict": True, "conversation": []},
     {"a b": 1, "": 2, "__class__": 3, "{{ 7 * 7 }}": 4}, {"bos_token": {"x": []}},
     {"add_generation_prompt": []}, {"messages": []}, {"tools": "x"},
     {"chat_template": "{{ 7 * 7 }}"}, {"cycler": "x" * 1_000_000}],
)  # fmt: skip
def test_template_variables_of_a_request(start, variables: dict[str, Any]) -> None:
    client = FakeClient()
    server = start(client)
    reply = server.chat(chat_template_kwargs=variables)
    if reply.status_code != 200:
        error_of(reply)
        assert not client.requests
        return
    assert bytes(client.requests[0].prompt_token_ids) == b"user: hi\nassistant: "


def test_no_request_brings_a_template(shared: RunningServer) -> None:
    template = {"chat_template": "{{ 7 * 7 }}"}
    error_of(shared.chat(**template))
    usual, asked = (
        shared.post("/tokenize", messages=USER, **fields).json() for fields in ({}, template)
    )
    assert asked.get("tokens", usual["tokens"]) == usual["tokens"]


@pytest.mark.parametrize(
    "stop",
    [["(a+)+$"], ["a" * 1000 + "b"], ["a" * n for n in range(2, 60)], ["(.*)*x", "[[:a:]]"]],
    ids=["pattern", "long", "many", "classes"],
)  # fmt: skip
def test_stop_strings_are_no_patterns(start, stop: list[str]) -> None:
    text = b"a" * 1500
    server = start(FakeClient(script=lambda request: text))
    reply = server.post("/v1/completions", prompt="x", stop=stop, max_tokens=1500)
    expected = "" if all(set(entry) == {"a"} for entry in stop) else text.decode()
    assert reply.json()["choices"][0]["text"] == expected


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
EVIL = (
    "<tool_call>", "<tool_call>{", '{"name":"f","arguments":{"a":[', "<think>", "</think><", "[[",
    '\\"', "[f(a=", "<function=f>\n<parameter=a>\n", "<|channel|>analysis<|message|>", "aaaaaaaa",
    '<|tool_call>call:f{a:<|"|>', "[TOOL_CALLS]f[ARGS]{", "<|python_tag|>{;", " \t\n", "e+1.0-",
)  # fmt: skip
_FEED = """
import json, sys
from pagoda.text.parsers.select import FAMILIES, parser_for
pieces, tools = json.load(sys.stdin)
for name in {parser_for(None, name, name).name for name in FAMILIES}:
    for piece in pieces:
        parser, text = parser_for(None, name, name)("", tools), piece * 1000
        for start in range(0, len(text), 7):
            parser.feed(text[start : start + 7])
        parser.finish()
"""


def test_no_output_of_a_model_keeps_a_parser_busy() -> None:
    """Each family reads hostile texts of up to 30 kB: seconds in all, and what backtracks would
    take years."""
    told = json.dumps([EVIL, TOOLS])
    subprocess.run([sys.executable, "-c", _FEED], input=told, text=True, check=True, timeout=200)


def test_everybody_else_is_served_after_all_that(shared: RunningServer) -> None:
    assert shared.chat().json()["choices"][0]["message"]["content"] == REPLY
