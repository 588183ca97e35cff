"""Responses that outlive their requests: resumed, cancelled, listed, deleted, kept in a file."""

import stat
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

from pagoda.base.errors import ConfigError
from pagoda.config.server import ServerConfig
from pagoda.server.responses import registry
from pagoda.server.responses.store import Bound, ResponseStore, Stored, owner_of
from tests.server.conftest import running, wait_until
from tests.server.fakes import REPLY, FakeClient
from tests.server.test_responses import ASK, ask, error_of, events_of, prompt_of, settled

SLOW = {"delay": 0.02}


def text_of(events: list[Any]) -> str:
    return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")


def test_a_stored_stream_resumes_from_any_event(shared) -> None:
    first = shared.post("/v1/responses", **ASK, stream=True).text
    events = events_of(first)
    response_id = events[0]["response"]["id"]
    path = f"/v1/responses/{response_id}?stream=true"
    assert shared.http.get(path).text == first
    for after in (0, 5, len(events) - 2):
        tail = shared.http.get(f"{path}&starting_after={after}").text
        assert events_of(tail) == events[after + 1 :]
    for after in (len(events) - 1, 10_000):
        assert shared.http.get(f"{path}&starting_after={after}").text == ""
    client = shared.openai().responses
    resumed = list(client.retrieve(response_id, stream=True, starting_after=5))
    assert [event.sequence_number for event in resumed] == list(range(6, len(events)))
    assert resumed[-1].response == client.retrieve(response_id)


def test_a_background_response_goes_on_without_its_client(start) -> None:
    client = FakeClient(**SLOW)
    server = start(client)
    response = ask(server, background=True)
    assert (response.status, response.output) == ("queued", [])
    wait_until(lambda: bool(server.openai().responses.retrieve(response.id).output_text))
    partial = server.openai().responses.retrieve(response.id)
    assert partial.status == "in_progress" and REPLY.startswith(partial.output_text)
    done = settled(server, response.id)
    assert (done.status, done.output_text) == ("completed", REPLY)
    assert client.aborted == []


def test_a_background_stream_is_left_and_resumed(start) -> None:
    client = FakeClient(**SLOW)
    server = start(client)
    seen = []
    with server.openai().responses.create(**ASK, background=True, stream=True) as stream:
        for event in stream:
            seen.append(event.to_dict())
            if len(seen) == 8:
                break
    assert [event["type"] for event in seen[:3]] == [
        "response.created", "response.queued", "response.in_progress",
    ]  # fmt: skip
    response_id = seen[0]["response"]["id"]
    wait_until(lambda: server.http.get("/load").json() == {"server_load": 0})
    assert client.running, "it must still run"
    path = f"/v1/responses/{response_id}?stream=true&starting_after=7"
    rest = events_of(server.http.get(path).text)
    assert [event["sequence_number"] for event in rest][:2] == [8, 9]
    assert text_of(seen + rest) == REPLY
    assert rest[-1]["type"] == "response.completed"
    assert client.aborted == []


def test_cancel(start) -> None:
    client = FakeClient(delay=0.05)
    server = start(client)
    responses = server.openai().responses
    response = ask(server, background=True)
    wait_until(lambda: bool(responses.retrieve(response.id).output_text))
    cancelled = responses.cancel(response.id)
    assert cancelled.status == "cancelled" and REPLY.startswith(cancelled.output_text)
    wait_until(lambda: not client.running)
    assert len(client.aborted) == 1
    # Again, and once it is stored: nothing changes.
    assert responses.cancel(response.id) == responses.retrieve(response.id) == cancelled
    events = events_of(server.http.get(f"/v1/responses/{response.id}?stream=true").text)
    assert events[-1]["type"] == "response.cancelled"


def test_cancel_at_once(start) -> None:
    client = FakeClient(**SLOW)
    server = start(client)
    response = ask(server, background=True)
    assert server.openai().responses.cancel(response.id).status == "cancelled"
    wait_until(lambda: not client.running)


def test_a_response_with_a_reader_is_not_cancelled(start) -> None:
    server = start(FakeClient(**SLOW))
    with server.http.stream("POST", "/v1/responses", json={**ASK, "stream": True}) as reply:
        lines = (line for line in reply.iter_lines() if line.startswith("data: "))
        created = msgspec.json.decode(next(lines).removeprefix("data: "))
        path = f"/v1/responses/{created['response']['id']}/cancel"
        assert "background" in error_of(server.http.post(path))["message"]
    wait_until(lambda: server.http.get("/load").json() == {"server_load": 0})
    assert server.http.get(path.removesuffix("/cancel")).json()["status"] == "cancelled"


def test_only_so_many_at_once(start, monkeypatch) -> None:
    monkeypatch.setattr(registry, "MAX_BACKGROUND", 1)
    server = start(FakeClient(**SLOW))
    first = ask(server, background=True)
    refused = server.post("/v1/responses", **ASK, background=True)
    error_of(refused, 503)
    assert "retry-after" in refused.headers
    settled(server, first.id)
    wait_until(lambda: server.post("/v1/responses", **ASK, background=True).status_code == 200)


def test_one_that_is_still_written_can_not_be_followed(start) -> None:
    server = start(FakeClient(**SLOW))
    first = ask(server, background=True)
    error = error_of(server.post("/v1/responses", **ASK, previous_response_id=first.id))
    assert error["param"] == "previous_response_id"


def test_delete(start) -> None:
    client = FakeClient(**SLOW)
    server = start(client)
    done, runs = ask(server), ask(server, background=True)
    for response in (done, runs):
        reply = server.http.delete(f"/v1/responses/{response.id}").json()
        assert reply == {"id": response.id, "object": "response", "deleted": True}
        with pytest.raises(openai.NotFoundError):
            server.openai().responses.delete(response.id)
        with pytest.raises(openai.NotFoundError):
            server.openai().responses.retrieve(response.id)
    wait_until(lambda: not client.running)
    assert client.aborted == [client.requests[-1].req_id]


def test_store_false_is_honoured(shared) -> None:
    response = ask(shared, store=False)
    assert response.store is False
    with pytest.raises(openai.NotFoundError):
        shared.openai().responses.retrieve(response.id)


def test_input_items(shared) -> None:
    given: list[Any] = [{"role": "user", "content": str(number)} for number in range(5)]
    given[3]["id"] = "msg_mine"
    response_id = ask(shared, input=given).id
    listed = shared.openai().responses.input_items.list
    newest = listed(response_id)
    assert [item.content for item in newest.data] == ["4", "3", "2", "1", "0"]
    assert newest.data[1].id == "msg_mine" and not newest.has_more
    assert all(item.id.startswith("msg_") for item in newest.data)
    page = listed(response_id, order="asc", limit=2)
    assert [item.content for item in page.data] == ["0", "1"] and page.has_more
    assert (page.first_id, page.last_id) == (page.data[0].id, page.data[1].id)
    # The client turns the pages itself.
    assert [item.content for item in page] == ["0", "1", "2", "3", "4"]
    text = shared.http.get(f"/v1/responses/{ask(shared).id}/input_items").json()["data"]
    assert [(item["role"], item["content"]) for item in text] == [
        ("user", [{"type": "input_text", "text": "hi"}])
    ]


def stored(number: int, size: int = 10, **fields: Any) -> Stored:
    response = msgspec.json.encode({"status": "queued", "output": ["x" * size]})
    return Stored(id=f"r{number}", previous_id=None, response=response, input=b"[]", **fields)


async def held(store: ResponseStore) -> str:
    """Which of ten are there; to look is to use."""
    return "".join([str(i) for i in range(10) if await store.get(f"r{i}") is not None])


async def test_the_oldest_goes_when_there_are_too_many() -> None:
    store = ResponseStore(None, Bound(3, 10_000))
    for number in range(5):
        await store.put(stored(number))
    assert await held(store) == "234"
    await store.get("r2")
    await store.put(stored(5))
    assert await held(store) == "245"
    await store.put(stored(4, size=20))  # replaced, not added
    assert await held(store) == "245"
    assert await store.delete("r4") and not await store.delete("r4")
    await store.put(stored(6))
    assert await held(store) == "256"
    store.close()


async def test_what_could_not_be_written_changes_nothing() -> None:
    store = ResponseStore(None, Bound(3, 10_000))
    await store.put(stored(0))
    for _ in range(3):
        with pytest.raises(UnicodeEncodeError):  # in the middle of it
            await store.put(msgspec.structs.replace(stored(0), previous_id="\ud800"))
    assert await held(store) == "0"
    for number in range(1, 5):
        await store.put(stored(number))
    assert await held(store) == "234"
    store.close()


async def test_the_oldest_goes_when_they_are_too_big() -> None:
    store = ResponseStore(None, Bound(100, 3000))
    for number in range(3):
        await store.put(stored(number, size=900))
    assert await held(store) == "012"
    await store.put(stored(3, size=1500))
    assert await held(store) == "23"
    await store.put(stored(4, size=5000))
    assert await held(store) == ""
    store.close()


def test_a_file_keeps_them_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    config = ServerConfig(responses_store=str(path), disable_uvicorn_access_log=True)
    with running(FakeClient(), config) as server:
        first = ask(server)
        events = server.http.get(f"/v1/responses/{first.id}?stream=true").text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with running(FakeClient(), config) as server:
        assert server.openai().responses.retrieve(first.id) == first
        assert server.http.get(f"/v1/responses/{first.id}?stream=true").text == events
        ask(server, input="and?", previous_response_id=first.id)
        assert prompt_of(server) == f"user: hi\nassistant: {REPLY}\nuser: and?\nassistant: "
        with pytest.raises(ConfigError, match="locked"):
            ResponseStore(str(path))


async def test_what_a_killed_server_wrote_has_failed(tmp_path: Path) -> None:
    path = str(tmp_path / "responses.db")
    event = b'event: response.created\ndata: {"sequence_number":0}\n\n'
    store = ResponseStore(path)
    await store.put(stored(1, running=True, events=event))
    await store.put(stored(2))
    store.close()
    store = ResponseStore(path)
    interrupted, other = await store.get("r1"), await store.get("r2")
    assert interrupted is not None and other is not None
    response = msgspec.json.decode(interrupted.response)
    assert response["status"] == "failed" and "server ended" in response["error"]["message"]
    assert msgspec.json.decode(other.response)["status"] == "queued"
    _, last, _ = interrupted.events.split(b"\n\n")
    told = msgspec.json.decode(last.partition(b"data: ")[2])
    assert told == {"type": "response.failed", "sequence_number": 1, "response": response}
    store.close()


def test_a_file_that_can_not_be_used(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "such.db"):
        with pytest.raises(ConfigError, match="--responses-store"):
            ResponseStore(str(path))
    text = tmp_path / "text.db"
    text.write_text("This is no database, but it is as long as the header of one." * 20)
    with pytest.raises(ConfigError, match="not a database"):
        ResponseStore(str(text))


def test_a_full_disk_costs_no_reply(start, monkeypatch, caplog) -> None:
    def fail(*args: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(ResponseStore, "_put", fail)
    server = start(FakeClient())
    assert ask(server).output_text == REPLY
    wait_until(lambda: "No space left" in caplog.text)


def test_ids_name_their_response() -> None:
    hexadecimal = "0123456789abcdef" * 2
    assert owner_of(f"msg_{hexadecimal}_12") == f"resp_{hexadecimal}"
    for other in ("msg_1", f"msg_{hexadecimal}", f"msg_{hexadecimal}_", "", "call_x"):
        assert owner_of(other) is None


def test_the_engine_of_a_background_response_dies(start) -> None:
    server = start(FakeClient(die_after=3, delay=0.01))
    failed = settled(server, ask(server, background=True).id)
    assert failed.status == "failed" and "killed by a test" in failed.error.message
    assert failed.output_text == "Hel"


def test_readers_in_crowds(start) -> None:
    """Several follow one response, and each gets all of it."""
    server = start(FakeClient(delay=0.005))
    path = f"/v1/responses/{ask(server, background=True).id}?stream=true"
    with (
        httpx.Client(base_url=server.url) as other,
        server.http.stream("GET", path) as one,
        other.stream("GET", path) as two,
    ):
        first, second = one.read(), two.read()
    assert first == second and text_of(events_of(first.decode())) == REPLY
