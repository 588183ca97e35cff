"""Keys by name: whom they open to, which models they see, and what their limits refuse."""

import contextlib
import datetime
import hmac
import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from websockets.sync.client import connect

from pagoda.config.server import ServerConfig
from pagoda.engine.served.fleet import Fleet
from pagoda.server.http import auth
from pagoda.server.keys import keyring
from pagoda.server.keys.file import KeyEntry, new_key, read_keys, write_keys
from tests.server.conftest import RunningServer, wait_until
from tests.server.fakes import REPLY, FakeClient
from tests.server.test_pooling import encoder

USER = [{"role": "user", "content": "hi"}]
PROMPT = len("user: hi\nassistant: ")
ANSWER = len(REPLY.encode()) + 1  # and the token that ends it
CREATED = datetime.date(2026, 1, 1)


@dataclass
class Keyed:
    """A server, and the file of its keys."""

    server: RunningServer
    path: Path
    keys: dict[str, str]

    def client(self, name: str) -> openai.OpenAI:
        made = openai.OpenAI(
            base_url=f"{self.server.url}/v1", api_key=self.keys.get(name, name), max_retries=0
        )
        return self.server.clients.enter_context(made)

    def get(self, path: str, name: str) -> httpx.Response:
        return self.server.http.get(path, headers=self.bearer(name))

    def post(self, path: str, name: str, **body: Any) -> httpx.Response:
        return self.server.http.post(path, json=body, headers=self.bearer(name))

    def chat(self, name: str, **body: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", name, **{"messages": USER, **body})

    def bearer(self, name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys.get(name, name)}"}

    def usage(self, name: str) -> dict[str, Any]:
        (row,) = self.get("/v1/usage", name).json()["data"]
        assert row["key"] == name and row["today"] == row["total"]
        return row["total"].get("fake", {})

    def change(self, **entries: KeyEntry | None) -> None:
        kept = {**read_keys(self.path), **entries}
        write_keys(self.path, {name: entry for name, entry in kept.items() if entry is not None})


def entry(digest: str, **fields: Any) -> KeyEntry:
    return KeyEntry(sha256=digest, created=CREATED, **fields)


@pytest.fixture
def keyed(start: Callable[..., RunningServer], tmp_path: Path, monkeypatch) -> Callable[..., Keyed]:
    """Start a server with keys of these names and fields; it looks at the file at each request."""
    monkeypatch.setattr(keyring, "LOOK_SECONDS", 0.0)

    def keyed(
        client: FakeClient | None = None, /, plain: tuple[str, ...] = (), **of: dict
    ) -> Keyed:
        path, keys, entries = tmp_path / "keys.json", {}, {}
        for name, fields in of.items():
            keys[name], digest = new_key()
            entries[name] = entry(digest, **fields)
        write_keys(path, entries)
        config = ServerConfig(api_key=plain, api_key_file=str(path))
        return Keyed(start(client or FakeClient(), config), path, keys)

    return keyed


def test_who_gets_in(keyed: Callable[..., Keyed]) -> None:
    here = keyed(plain=("plain",), alice={}, gone={"disabled": True})
    http = here.server.http
    for headers, status in (
        (here.bearer("alice"), 200), ({"x-api-key": here.keys["alice"]}, 200),
        (here.bearer("plain"), 200), (here.bearer("gone"), 401), (here.bearer("nobody"), 401),
        ({}, 401), ({"x-api-key": ""}, 401),
        ({"x-api-key": read_keys(here.path)["alice"].sha256}, 401),
    ):  # fmt: skip
        assert http.get("/v1/models", headers=headers).status_code == status, headers
    with pytest.raises(openai.AuthenticationError):
        here.client("nobody").models.list()
    claude = anthropic.Anthropic(base_url=here.server.url, api_key="nobody", max_retries=0)
    with claude, pytest.raises(anthropic.AuthenticationError):
        claude.messages.create(model="fake", max_tokens=1, messages=USER)
    told = here.get("/api/tags", "nobody")
    assert told.status_code == 401 and isinstance(told.json()["error"], str)


def test_a_file_without_keys_opens_to_nobody(keyed: Callable[..., Keyed]) -> None:
    here = keyed()
    assert here.server.http.get("/v1/models").status_code == 401
    assert here.server.http.get("/v1/models", headers={"x-api-key": ""}).status_code == 401
    assert here.server.http.get("/health").status_code == 200


def test_named_keys_are_compared_in_constant_time(keyed, monkeypatch) -> None:
    here = keyed(plain=("plain",), alice={}, bob={})
    compared: list[int] = []
    real = hmac.compare_digest

    def spy(first: bytes, second: bytes) -> bool:
        compared.append(len(first))
        return real(first, second)

    monkeypatch.setattr(auth.hmac, "compare_digest", spy)
    for name in ("plain", "alice", "bob", "nobody"):
        compared.clear()
        here.get("/v1/models", name)
        assert compared == [32] * 6  # Authorization and x-api-key, with each of three


@pytest.fixture
def two_models(keyed, monkeypatch: pytest.MonkeyPatch) -> Keyed:
    """With a second model, `other`."""
    here = keyed(one={"models": ("other",)}, alias={"models": ("fake-alias",)}, every={})
    fleet = here.server.context.fleet
    (first,) = fleet.models()
    here.server.context.fleet = Fleet.of([first, replace(first, names=("other",))])
    return here


def test_models_of_a_key(two_models: Keyed) -> None:
    here = two_models
    listed = {n: [m.id for m in here.client(n).models.list()] for n in ("one", "alias", "every")}
    assert listed == {
        "one": ["other"], "alias": ["fake", "fake-alias"], "every": ["fake", "fake-alias", "other"],
    }  # fmt: skip
    assert [m["name"] for m in here.get("/api/tags", "one").json()["models"]] == ["other"]
    assert [m["key"] for m in here.get("/api/v1/models", "one").json()["models"]] == ["other"]
    assert here.get("/v1/models/other", "one").status_code == 200
    for path in ("/v1/models/fake", "/api/v0/models/fake", "/props?model=fake"):
        assert here.get(path, "one").status_code == 404, path
    assert here.chat("one").json()["model"] == "other"  # which is its first
    assert here.chat("one", model="other").status_code == 200
    with pytest.raises(openai.NotFoundError, match="Served here: other"):
        here.client("one").chat.completions.create(model="fake", messages=USER)
    for path in ("/v1/completions", "/v1/responses", "/tokenize", "/completion", "/models/load"):
        body = {"prompt": "a", "input": "a", "model": "fake"}
        fields = body if path != "/v1/responses" else {"input": "a", "model": "fake"}
        assert here.post(path, "one", **fields).status_code == 404, path
    told = here.post("/v1/messages", "one", model="fake", max_tokens=1, messages=USER)
    assert told.status_code == 404 and told.json()["type"] == "error"
    told = here.post("/api/chat", "one", model="fake", messages=USER)
    assert told.status_code == 404 and "not found" in told.json()["error"]
    told = here.chat("one", model="other", lora=[{"id": 0, "scale": 1.0}])
    assert told.status_code == 403


def test_requests_per_minute(keyed: Callable[..., Keyed]) -> None:
    here = keyed(slow={"requests_per_minute": 2}, free={})
    client = here.client("slow")
    replies = [
        client.chat.completions.with_raw_response.create(model="fake", messages=USER)
        for _ in range(2)
    ]
    assert [r.headers["x-ratelimit-remaining-requests"] for r in replies] == ["1", "0"]
    assert replies[0].headers["x-ratelimit-limit-requests"] == "2"
    assert replies[0].headers["x-ratelimit-reset-requests"] in ("1m0s", "1m1s")
    assert "x-ratelimit-limit-tokens" not in replies[0].headers
    client.models.list()  # asks no model
    with pytest.raises(openai.RateLimitError, match="2 requests per minute") as refused:
        client.chat.completions.create(model="fake", messages=USER, stream=True)
    assert 55 <= int(refused.value.response.headers["retry-after"]) <= 61
    assert refused.value.response.headers["x-ratelimit-remaining-requests"] == "0"
    for path, body in (
        ("/v1/messages", {"model": "fake", "max_tokens": 1, "messages": USER}),
        ("/api/chat", {"model": "fake", "messages": USER}),
    ):
        told = here.post(path, "slow", **body)
        assert told.status_code == 429 and int(told.headers["retry-after"]) > 0
    assert here.chat("free").status_code == 200
    assert here.usage("slow")["requests"] == 2


@contextlib.contextmanager
def streaming(here: Keyed, name: str) -> Iterator[Iterator[str]]:
    """A reply that has begun."""
    body = {"messages": USER, "stream": True}
    url = f"{here.server.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, headers=here.bearer(name), timeout=20) as reply:
        lines = reply.iter_lines()
        assert reply.status_code == 200 and next(lines)
        yield lines


def test_parallel_requests(keyed: Callable[..., Keyed]) -> None:
    here = keyed(FakeClient(delay=0.02), two={"parallel": 2}, other={"parallel": 1})
    with streaming(here, "two") as first:
        with streaming(here, "two"), streaming(here, "other"):
            told = here.chat("two")
            assert told.status_code == 429 and "2 requests at a time" in told.text
            assert told.headers["retry-after"] == "1"
        # The second one's client left.
        wait_until(lambda: len(here.server.client.running) == 1)
        wait_until(lambda: here.chat("two", max_tokens=1).status_code == 200)
        for _ in first:
            pass
    with streaming(here, "two"), streaming(here, "two"):
        pass


def test_many_at_once_are_no_more_than_the_limits(keyed: Callable[..., Keyed]) -> None:
    here = keyed(FakeClient(delay=0.01), few={"parallel": 3}, some={"requests_per_minute": 5})
    for name, most in (("few", 3), ("some", 5)):
        at_once, statuses = threading.Barrier(10), []

        def ask(name: str = name, at_once=at_once, statuses=statuses) -> None:
            at_once.wait()
            statuses.append(here.chat(name, max_tokens=20).status_code)

        threads = [threading.Thread(target=ask) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(statuses) == [200] * most + [429] * (10 - most)


def test_a_background_response_counts_while_it_runs(keyed: Callable[..., Keyed]) -> None:
    here = keyed(FakeClient(delay=0.02), one={"parallel": 1})
    client = here.client("one")
    made = client.responses.create(model="fake", input="hi", background=True)
    with pytest.raises(openai.RateLimitError):
        client.responses.create(model="fake", input="hi")
    client.responses.cancel(made.id)
    assert client.responses.create(model="fake", input="hi").status == "completed"


def test_tokens_per_minute(keyed: Callable[..., Keyed]) -> None:
    here = keyed(few={"tokens_per_minute": PROMPT + 10})
    client = here.client("few")
    raw = client.chat.completions.with_raw_response.create(
        model="fake", messages=USER, max_tokens=9
    )
    assert raw.headers["x-ratelimit-limit-tokens"] == str(PROMPT + 10)
    assert raw.headers["x-ratelimit-remaining-tokens"] == "1"
    assert client.chat.completions.create(model="fake", messages=USER, max_tokens=1)
    with pytest.raises(openai.RateLimitError, match="tokens per minute") as refused:
        client.chat.completions.create(model="fake", messages=USER)
    assert 55 <= int(refused.value.response.headers["retry-after"]) <= 61
    assert here.usage("few")["prompt_tokens"] == 2 * PROMPT


def test_a_prompt_counts_when_the_engine_has_it(keyed: Callable[..., Keyed]) -> None:
    """Not when its reply has ended: others come meanwhile."""
    here = keyed(FakeClient(delay=0.05), few={"tokens_per_minute": PROMPT})
    with streaming(here, "few"):
        assert here.chat("few").status_code == 429
    assert len(here.server.client.requests) == 1


def test_tokens_per_day(keyed: Callable[..., Keyed]) -> None:
    here = keyed(few={"tokens_per_day": PROMPT})
    reply = here.chat("few", max_tokens=1)
    assert reply.headers["x-ratelimit-remaining-tokens"] == "0"
    told = here.chat("few")
    assert told.status_code == 429 and 0 < int(told.headers["retry-after"]) <= 86400


def test_usage_is_what_replies_say(keyed: Callable[..., Keyed]) -> None:
    here = keyed(alice={}, bob={}, boss={"admin": True}, plain=("plain",))
    client = here.client("alice")
    replies = [
        client.chat.completions.create(model="fake", messages=USER, n=3).usage,
        client.completions.create(model="fake", prompt=["ab", "cde"], max_tokens=4).usage,
        client.completions.create(model="fake", prompt="abc", stop="W").usage,
        *(chunk.usage for chunk in client.chat.completions.create(
            model="fake", messages=USER, stream=True, stream_options={"include_usage": True})),
    ]  # fmt: skip
    told = [usage for usage in replies if usage is not None]
    assert len(told) == 4
    reply = client.responses.create(model="fake", input="hi").usage
    used = here.usage("alice")
    assert used["requests"] == 5
    assert used["prompt_tokens"] == sum(u.prompt_tokens for u in told) + reply.input_tokens
    assert used["completion_tokens"] == sum(u.completion_tokens for u in told) + reply.output_tokens
    cached = sum(u.prompt_tokens_details.cached_tokens for u in told if u.prompt_tokens_details)
    assert used["cached_tokens"] == cached + reply.input_tokens_details.cached_tokens
    assert here.usage("bob") == {}
    for name in ("boss", "plain"):
        rows = here.get("/v1/usage", name).json()["data"]
        assert [row["key"] for row in rows] == ["alice", "bob", "boss"]
        assert rows[0]["total"]["fake"] == used
    metrics = here.server.http.get("/metrics").text
    assert (
        f'pagoda:key_tokens_total{{key="alice",kind="prompt"}} {used["prompt_tokens"]}' in metrics
    )
    assert 'pagoda:key_requests_total{key="alice"} 5.0' in metrics
    assert not any(key in metrics for key in here.keys.values())


def test_usage_without_named_keys(shared: RunningServer) -> None:
    told = shared.http.get("/v1/usage")
    assert told.status_code == 404 and "--api-key-file" in told.text


def test_usage_of_what_ends_early(keyed: Callable[..., Keyed]) -> None:
    here = keyed(FakeClient(delay=0.02), alice={})
    with streaming(here, "alice") as lines:
        for _ in range(10):
            next(lines)
    wait_until(lambda: not here.server.client.running)
    used = here.usage("alice")
    assert used["prompt_tokens"] == PROMPT and used["requests"] == 1
    assert 2 <= used["completion_tokens"] < ANSWER


def test_usage_of_vectors(keyed: Callable[..., Keyed]) -> None:
    here = keyed(encoder(), alice={})
    usage = here.client("alice").embeddings.create(model="fake", input=["ab", "cde"]).usage
    assert here.usage("alice")["prompt_tokens"] == usage.prompt_tokens == 5


def test_each_response_of_a_socket_is_a_request(keyed: Callable[..., Keyed]) -> None:
    here = keyed(alice={"requests_per_minute": 2})
    url = here.server.url.replace("http", "ws", 1) + "/v1/responses"
    ask = json.dumps({"type": "response.create", "model": "fake", "input": "hi"})
    with connect(url, additional_headers=here.bearer("alice")) as socket:
        for _ in range(2):
            socket.send(ask)
            while json.loads(socket.recv(10))["type"] != "response.completed":
                pass
        socket.send(ask)
        assert json.loads(socket.recv(10))["status"] == 429
        assert here.usage("alice")["completion_tokens"] == 2 * ANSWER
        here.change(alice=None)
        assert here.get("/v1/models", "alice").status_code == 401
        socket.send(ask)
        assert json.loads(socket.recv(10))["status"] == 401


def test_the_file_is_read_again(keyed: Callable[..., Keyed], caplog, monkeypatch) -> None:
    here = keyed(alice={}, bob={})
    monkeypatch.setattr(logging.getLogger("pagoda"), "propagate", True)
    key, digest = new_key()
    here.change(carol=entry(digest), bob=None)
    here.keys["carol"] = key
    assert [here.get("/v1/models", n).status_code for n in here.keys] == [200, 401, 200]
    good = here.path.read_bytes()
    for broken in (b'{"carol": 5}', b"sk-plain-key\n", b""):
        caplog.clear()
        here.path.write_bytes(broken)
        assert [here.get("/v1/models", n).status_code for n in here.keys] == [200, 401, 200]
        assert "still hold" in caplog.text and "sk-plain" not in caplog.text
    here.path.unlink()
    assert here.get("/v1/models", "carol").status_code == 200
    here.path.write_bytes(good)
    here.change(carol=entry(digest, requests_per_minute=1))
    assert [here.chat("carol").status_code for _ in range(2)] == [200, 429]
    here.change(carol=entry(digest, requests_per_minute=1, disabled=True))
    assert here.chat("carol").status_code == 401


def test_who_manages_the_server(keyed: Callable[..., Keyed]) -> None:
    here = keyed(alice={}, boss={"admin": True})
    for path in auth._MANAGING:
        told = here.post(path, "alice")
        assert told.status_code == 403 and "admin" in told.text, path
        assert here.post(path, "boss").status_code != 403, path
    for path, body in (
        ("/models/remove", {"model": "x/y"}), ("/models/plan", {"model": "x/y"}),
        ("/api/pull", {"model": "x/y"}), ("/mcp/call", {"server": "a", "tool": "b"}),
        ("/api/generate", {"model": "fake", "keep_alive": 0}),
    ):  # fmt: skip
        assert here.post(path, "alice", **body).status_code in (400, 403), path
    assert here.get("/tools", "alice").status_code == 403
    assert "admin" in here.get("/models/library", "alice").json()["closed"]
