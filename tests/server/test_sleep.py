"""/sleep, /wake_up and /is_sleeping over HTTP, the engine faked."""

import threading

import pytest

from pagoda.config.server import ServerConfig
from tests.server.conftest import wait_until
from tests.server.fakes import FakeClient
from tests.server.test_errors import error_of


def sleeping(server) -> bool:
    return server.http.get("/is_sleeping").json()["is_sleeping"]


def test_asleep_it_refuses_and_tells_when_to_come_back(start) -> None:
    client = FakeClient()
    server = start(client)
    assert not sleeping(server)
    assert server.http.post("/sleep").json() == {"is_sleeping": True}
    assert sleeping(server)
    for reply in (server.chat(), server.post("/v1/completions", prompt="a")):
        assert "sleeps; POST /wake_up wakes it" in error_of(reply, 503)["message"]
        assert int(reply.headers["Retry-After"]) > 0
    assert not client.requests
    assert server.http.get("/health").status_code == 200
    assert server.http.get("/v1/models").json()["data"][0]["status"]["value"] == "sleeping"
    assert 'sleep_state="weights_offloaded"} 1.0' in server.http.get("/metrics").text
    assert server.http.post("/sleep?level=1").json() == {"is_sleeping": True}
    assert server.http.post("/wake_up").json() == {"is_sleeping": False}
    assert server.http.post("/wake_up").json() == {"is_sleeping": False}
    assert server.chat().status_code == 200
    assert client.calls == ["sleep", "wake_up", "wake_up"]


def test_level_2_lets_go_of_the_engine(start) -> None:
    client = FakeClient()
    server = start(client)
    assert server.http.post("/sleep?level=2").json() == {"is_sleeping": True}
    assert client.stopped
    assert "sleeps" in error_of(server.chat(), 503)["message"]


@pytest.mark.parametrize(
    ("words", "status", "param"),
    [
        ("level=0", 400, "level"), ("level=3", 400, "level"), ("level=x", 400, "level"),
        ("mode=keep", 400, "mode"), ("model=unknown", 404, "model"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_changes_nothing(start, words, status, param) -> None:
    server = start(FakeClient())
    assert error_of(server.http.post(f"/sleep?{words}"), status)["param"] == param
    assert not sleeping(server)
    error_of(server.http.post("/wake_up?model=unknown"), 404)
    error_of(server.http.get("/is_sleeping?model=unknown"), 404)


@pytest.mark.parametrize("mode", ["abort", "wait"])
def test_what_runs_ends_at_once_or_in_its_own_time(start, mode) -> None:
    client = FakeClient(delay=0.02)
    server = start(client)
    replies: list[int] = []
    body = {"prompt": "a", "max_tokens": 30}
    thread = threading.Thread(
        target=lambda: replies.append(server.post("/v1/completions", **body).status_code)
    )
    thread.start()
    wait_until(lambda: len(client.running) == 1)
    assert server.http.post(f"/sleep?mode={mode}").status_code == 200
    assert not client.running
    thread.join(10)
    assert replies == [200 if mode == "wait" else 503]


def test_it_wants_the_key(start) -> None:
    server = start(FakeClient(), config=ServerConfig(api_key=("secret",)))
    for method, path in (("POST", "/sleep"), ("POST", "/wake_up"), ("GET", "/is_sleeping")):
        assert server.http.request(method, path).status_code == 401
    headers = {"Authorization": "Bearer secret"}
    assert server.http.post("/sleep", headers=headers).json() == {"is_sleeping": True}
