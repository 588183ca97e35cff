"""The agent's API over HTTP: who may do what, and what everyone gets to see."""

import asyncio
import base64
import contextlib
import io
import json
import re
import socket

import httpx
import pytest
import uvicorn
from PIL import Image

from pagoda_agent.consent.policy import Category, Decision
from pagoda_agent.runs.journal import JOURNAL
from pagoda_agent.service import gate as gates
from pagoda_agent.service.app import Service
from pagoda_agent.service.gate import Gate
from pagoda_agent.service.server import Server
from pagoda_agent.settings import load
from pagoda_agent.task.control import State
from tests.agent.test_operator import PATIENCE, computer, entered, make, until

__all__ = ["computer", "make"]


class Running:
    """A served agent, and browsers that speak to it."""

    def __init__(self, service, base):
        self.service, self.base = service, base
        self.exited = False
        self.clients = []

    def browser(self, **headers):
        client = httpx.AsyncClient(base_url=self.base, timeout=PATIENCE, headers=headers)
        self.clients.append(client)
        return client

    async def controller(self):
        client = self.browser()
        token = self.service.gate.address.partition("#")[2]
        reply = await client.post("/api/session", json={"token": token})
        assert reply.status_code == 200
        return client


@pytest.fixture
async def serve(tmp_path):
    async with contextlib.AsyncExitStack() as stack:

        async def serve(operator, **options):
            listener = socket.create_server(("127.0.0.1", 0))
            port = listener.getsockname()[1]
            service = Service(
                operator, Gate("127.0.0.1", port), tmp_path / "agent.json",
                lambda: setattr(running, "exited", True), **options,
            )  # fmt: skip
            running = Running(service, f"http://127.0.0.1:{port}")
            config = uvicorn.Config(service.app(), log_level="error", ws="none")
            server = uvicorn.Server(config)
            server.capture_signals = contextlib.nullcontext  # or it leaves them changed
            task = asyncio.create_task(server.serve([listener]))

            async def stop():
                for client in running.clients:
                    await client.aclose()
                server.should_exit = server.force_exit = True
                await asyncio.wait_for(task, PATIENCE)
                listener.close()

            stack.push_async_callback(stop)
            await until(lambda: server.started)
            return running

        yield serve


async def events_of(client, condition, since=0):
    """Events until one fulfils the condition."""
    seen = []
    async with client.stream("GET", f"/api/events?since={since}") as reply:
        assert reply.status_code == 200
        async for line in reply.aiter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line[6:]))
                if condition(seen[-1]):
                    return seen


def is_over(event):
    return event["event"] == "state" and event["state"] in ("done", "failed", "cancelled")


async def test_a_task_over_http(make, serve, computer):
    operator, _script = make("mouse 500 500 1", "Done")
    running = await serve(operator)
    client = await running.controller()
    assert (await client.get("/api/status")).json()["state"] == "idle"
    assert (await client.post("/api/start", json={"task": "click"})).status_code == 200
    events = await asyncio.wait_for(events_of(client, is_over), PATIENCE)
    assert events[0]["event"] == "start" and events[-1]["state"] == "done"
    assert computer.done("press")
    run = events[0]["run"]
    runs = (await client.get("/api/runs")).json()
    assert [entry["run"] for entry in runs] == [run]
    assert runs[0]["task"] == "click" and runs[0]["state"] == "done" and runs[0]["steps"] == 2
    kept = (await client.get(f"/api/runs/{run}")).json()
    assert [event["event"] for event in kept] == [event["event"] for event in events]
    frame = next(event["frame"]["file"] for event in kept if event["event"] == "step")
    picture = await client.get(f"/api/runs/{run}/frames/{frame}")
    assert picture.headers["content-type"] == "image/jpeg"
    assert picture.content[:3] == b"\xff\xd8\xff"


async def test_an_address_works_once(make, serve):
    running = await serve(make()[0])
    address = running.service.gate.address
    await running.controller()
    second = running.browser()
    token = address.partition("#")[2]
    assert (await second.post("/api/session", json={"token": token})).status_code == 403
    for path in ("status", "settings", "events", "screen", "runs"):
        reply = await second.get(f"/api/{path}")
        assert reply.status_code == 403 and "works once" in reply.json()["error"]
    assert (await second.post("/api/start", json={"task": "x"})).status_code == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "https://evil.test"}, 403),
        ({"host": "evil.test"}, 403),
        ({"host": "evil.test:80", "origin": "http://evil.test:80"}, 403),
        ({"origin": "null"}, 403),
        ({}, 200),
    ],
)
async def test_other_sites_may_do_nothing(make, serve, headers, status):
    running = await serve(make()[0])
    client = await running.controller()
    assert (await client.post("/api/reset", headers=headers)).status_code == status
    assert (await client.get("/api/status", headers=headers)).status_code == status


async def test_the_own_page_may(make, serve):
    running = await serve(make()[0])
    client = await running.controller()
    assert (await client.post("/api/reset", headers={"origin": running.base})).status_code == 200


async def test_the_cookie_is_kept_from_scripts_and_other_sites(make, serve):
    running = await serve(make()[0])
    client = running.browser()
    token = running.service.gate.token
    reply = await client.post("/api/session", json={"token": token})
    cookie = reply.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie


async def test_two_tasks_at_once_are_refused(make, serve):
    running = await serve(make(asyncio.Event())[0])
    client = await running.controller()
    replies = await asyncio.gather(
        *(client.post("/api/start", json={"task": f"{n}"}) for n in range(2))
    )
    assert sorted(reply.status_code for reply in replies) == [200, 409]


@pytest.mark.parametrize("name", ["pause", "resume", "answer", "consent"])
async def test_without_a_task(make, serve, name):
    running = await serve(make()[0])
    client = await running.controller()
    bodies = {"answer": {"text": "x"}, "consent": {"id": 1, "allow": True}}
    reply = await client.post(f"/api/{name}", json=bodies.get(name, {}))
    assert reply.status_code == 409 and "no task" in reply.json()["error"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"task": 5}', b'{"task": "x", "more": 1}', b"\xff"]
)
async def test_bodies_that_do_not_fit(make, serve, body):
    running = await serve(make()[0])
    client = await running.controller()
    reply = await client.post("/api/start", content=body)
    assert reply.status_code == 400 and "does not fit" in reply.json()["error"]


async def test_a_body_without_end(make, serve):
    running = await serve(make()[0])
    client = await running.controller()
    reply = await client.post("/api/start", content=b'{"task": "' + b"x" * 400_000 + b'"}')
    assert reply.status_code == 409 and "too large" in reply.json()["error"]


async def test_consent_over_http(make, serve, computer):
    running = await serve(make("typestr reboot\nkeyboard Enter", "Done")[0])
    client = await running.controller()
    await client.post("/api/start", json={"task": "x"})
    seen = await events_of(client, lambda event: event.get("state") == "waiting_consent")
    asked = seen[-1]
    assert asked["action"]["action"] == "Key" and "reboot" in asked["reason"]
    assert (await client.get("/api/status")).json()["consent"] == asked["id"]
    await client.post("/api/consent", json={"id": asked["id"], "allow": False})
    seen = await events_of(client, is_over, asked["number"] + 1)
    assert seen[-1]["state"] == "done" and not entered(computer)


async def test_consent_that_lasts_over_http(make, serve, computer):
    lines = "typestr mkdir a\nkeyboard Enter"
    running = await serve(make("keyboard ctrl+c", lines, lines, "Done")[0])
    client = await running.controller()
    await client.post("/api/start", json={"task": "x"})
    asked = (await events_of(client, lambda event: event.get("state") == "waiting_consent"))[-1]
    assert "runs nothing but mkdir" in asked["offer"]
    answer = {"id": asked["id"], "allow": False, "lasting": True}
    refused = await client.post("/api/consent", json=answer)
    assert refused.status_code == 409 and "for longer" in refused.json()["error"]
    reply = await client.post("/api/consent", json={**answer, "allow": True})
    assert reply.status_code == 200
    seen = await events_of(client, is_over, asked["number"] + 1)
    assert seen[-1]["state"] == "done" and computer.log.count(("down", "Enter")) == 2
    given = [event for event in seen if event["event"] == "consent"]
    assert [(event["verdict"], event["offer"]) for event in given] == [("lasting", asked["offer"])]


async def test_pause_hint_and_reset_over_http(make, serve):
    running = await serve(make(asyncio.Event(), "Done")[0])
    client = await running.controller()
    await client.post("/api/start", json={"task": "x"})
    assert (await client.post("/api/pause")).json()["state"] == "paused"
    assert (await client.post("/api/resume", json={"hint": "左"})).json()["state"] == "running"
    assert (await client.post("/api/reset")).json()["state"] == "idle"


async def test_the_key_is_written_and_never_read(make, serve, tmp_path):
    running = await serve(make()[0])
    client = await running.controller()
    changes = {"api_key": "sk-0123456789abcdef", "model": "qwen3-vl", "max_rounds": 7}
    reply = await client.post("/api/settings", json=changes)
    assert reply.status_code == 200 and reply.json()["api_key"] == "...cdef"
    assert "0123456789" not in (await client.get("/api/settings")).text
    kept = load(tmp_path / "agent.json")
    assert kept.api_key == "sk-0123456789abcdef" and kept.max_rounds == 7
    assert (tmp_path / "agent.json").stat().st_mode & 0o777 == 0o600
    await client.post("/api/settings", json={"model": "other"})
    assert load(tmp_path / "agent.json").api_key == "sk-0123456789abcdef", "not sent: it stays"


@pytest.mark.parametrize(
    "changes",
    [{"max_rounds": 0}, {"max_rounds": "x"}, {"unknown": 1}, {"profile": "nothing"},
     {"base_url": "ftp://x"}, {"policy": {"power": "maybe"}}, {"max_cost": 1.0}],
)  # fmt: skip
async def test_settings_that_do_not_fit_change_nothing(make, serve, changes):
    running = await serve(make()[0])
    client = await running.controller()
    before = running.service.operator.settings
    reply = await client.post("/api/settings", json=changes)
    assert reply.status_code == 400 and reply.json()["error"]
    assert running.service.operator.settings == before


@pytest.mark.parametrize("exits", [True, False])
async def test_closing_the_page(make, serve, computer, monkeypatch, exits):
    monkeypatch.setattr(gates, "GONE_SECONDS", 0.1)
    computer.typing_pause = 0.01
    operator, _script = make("typestr " + "x" * 5000)
    running = await serve(operator, exits_with_page=exits)
    client = await running.controller()
    await client.post("/api/start", json={"task": "x"})
    await events_of(client, lambda event: event["event"] == "acting")
    if exits:
        await until(lambda: running.exited)
        return
    await until(lambda: operator.control.state is State.PAUSED)
    assert computer.held == ()
    assert (await client.get("/api/status")).status_code == 403, "its cookie is worth nothing now"
    again = await running.controller()
    assert (await again.get("/api/status")).json()["state"] == "paused"


async def test_a_page_that_is_loaded_anew_finds_its_task_paused(make, serve, computer):
    computer.typing_pause = 0.01
    operator, _script = make("typestr " + "x" * 5000)
    running = await serve(operator)
    client = await running.controller()
    await client.post("/api/start", json={"task": "x"})
    await events_of(client, lambda event: event["event"] == "acting")
    await client.post("/api/close")
    assert operator.control.state is State.PAUSED and computer.held == ()
    seen = await events_of(client, lambda event: event.get("state") == "paused")
    assert seen[-1]["reason"] == "The page was closed." and not running.exited


@pytest.mark.parametrize("exits", [True, False])
async def test_the_page_goes_while_consent_is_asked_for(make, serve, computer, monkeypatch, exits):
    monkeypatch.setattr(gates, "GONE_SECONDS", 0.1)
    operator, script = make("typestr reboot\nkeyboard Enter", "Done")
    running = await serve(operator, exits_with_page=exits)
    client = await running.controller()
    await client.post("/api/start", json={"task": "x"})
    await events_of(client, lambda event: event.get("state") == "waiting_consent")
    request = operator.control.consent_request
    if exits:
        await until(lambda: running.exited)
        await operator.close()
    else:
        await until(lambda: operator.control.state is State.PAUSED)
        again = await running.controller()
        late = await again.post("/api/consent", json={"id": request.id, "allow": True})
        assert late.status_code == 409
        await again.post("/api/resume")
        await asyncio.wait_for(operator.control.wait(), PATIENCE)
        assert "stopped by the user" in script.told()
    assert not computer.done("down"), "what nobody allowed was not done"


async def test_a_second_tab_is_told_so(make, serve):
    running = await serve(make()[0])
    client = await running.controller()
    async with client.stream("GET", "/api/events") as reply:
        assert reply.status_code == 200
        second = await client.get("/api/events")
        assert second.status_code == 409 and "another tab" in second.json()["error"]


async def test_the_screen_as_motion_jpeg(make, serve, computer):
    running = await serve(make()[0])
    client = await running.controller()
    data = b""
    async with client.stream("GET", "/api/screen") as reply:
        assert reply.headers["content-type"].startswith("multipart/x-mixed-replace")
        async for part in reply.aiter_bytes():
            data += part
            if data.count(b"--frame") == 2 and data.count(b"\xff\xd9") == 1:
                computer.paint((0, 0, 50, 50))
            if data.count(b"\xff\xd9") == 2:
                break
    assert data.count(b"\xff\xd8\xff") == 2
    assert data.endswith(b"\r\n--frame\r\nContent-Type: image/jpeg\r\n\r\n"), "else browsers wait"


@pytest.mark.parametrize(
    "path", ["..", "%2e%2e", ".hidden", "nothing", "..%2fruns", "x/frames/..%2fjournal.jsonl"]
)
async def test_runs_elsewhere_are_not_read(make, serve, path):
    running = await serve(make()[0])
    client = await running.controller()
    reply = await client.get(f"/api/runs/{path}")
    assert reply.status_code in (404, 409)


async def test_what_a_model_says_is_text_in_an_export(make, serve):
    operator, _script = make("# <script>alert(1)</script>\nmouse 500 500 1", "Done")
    running = await serve(operator)
    client = await running.controller()
    await client.post("/api/start", json={"task": "<img src=x onerror=alert(2)>"})
    events = await asyncio.wait_for(events_of(client, is_over), PATIENCE)
    page = await client.get(f"/api/runs/{events[0]['run']}/export")
    assert "attachment" in page.headers["content-disposition"]
    assert "<script" not in page.text and "<img src=x" not in page.text
    assert "&lt;script&gt;alert(1)" in page.text
    assert page.text.count("data:image/jpeg;base64,") == 2
    assert "http://" not in page.text and "https://" not in page.text


async def test_an_export_marks_what_was_done(make, serve):
    script = ["mouse 250 500 1", "drag 100 100 500 500", "mouse 750 500 6", "typestr x", "Done"]
    running = await serve(make(*script)[0])
    client = await running.controller()
    await client.post("/api/start", json={"task": "x"})
    events = await asyncio.wait_for(events_of(client, is_over), PATIENCE)
    page = (await client.get(f"/api/runs/{events[0]['run']}/export")).text
    marks = [(0.25, 0.5), (0.3, 0.3), (0.75, 0.5), None, None]
    pictures = re.findall('data:image/jpeg;base64,([^"]+)', page)
    for place, data in zip(marks, pictures, strict=True):
        picture = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
        if place:
            x, y = place[0] * picture.width, place[1] * picture.height
            picture = picture.crop((int(x) - 15, int(y) - 15, int(x) + 15, int(y) + 15))
        colors = [color for _count, color in picture.getcolors(1 << 20)]
        assert any(red > 180 and green < 90 for red, green, _ in colors) is bool(place)


async def test_a_secret_is_in_no_answer(make, serve, computer, caplog):
    """The model knows it, as it may from the screen, and says it wherever it can; what typed it
    breaks and quotes it."""
    secret = "correct horse"
    operator, _script = make(
        f"# it is {secret}\ntypestr {{{{secret:wifi}}}}", f"keyboard {secret}",
        f"$ Is it {secret}?", "typestr more", secrets={"wifi": secret},
        policy={Category.SECRET: Decision.ALLOW},
    )  # fmt: skip
    running = await serve(operator)
    client = await running.controller()
    await client.post("/api/start", json={"task": f"Log in with {secret}"})
    waiting = await events_of(client, lambda event: event.get("state") == "waiting_user")
    said = [json.dumps(waiting), (await client.get("/api/status")).text]
    assert "Is it {{secret:wifi}}?" in said[1]
    computer.fails["type"] = f"typing {secret} broke"
    await client.post("/api/answer", json={"text": secret})
    seen = await events_of(client, is_over, waiting[-1]["number"] + 1)
    assert "a bug" in seen[-1]["reason"]
    run = waiting[0]["run"]
    for path in ("status", "settings", "runs", f"runs/{run}", f"runs/{run}/export"):
        said.append((await client.get(f"/api/{path}")).text)
    said += [json.dumps(seen), caplog.text]
    assert computer.typed == secret
    assert not [text for text in said if secret in text]
    assert "{{secret:wifi}} broke" in caplog.text and "{{secret:wifi}} broke" in said[2]


async def test_a_run_that_goes_on_is_told_from_its_beginning(make, serve, computer):
    operator, script = make("mouse 100 100 1", asyncio.Event())
    control = await operator.start("the task")
    await until(lambda: len(script.requests) == 2)
    folder = operator.folder
    lines = (folder / JOURNAL).read_text()
    await control.cancel()
    (folder / JOURNAL).write_text(lines)  # as kill -9 leaves it
    again, _script = make("mouse 900 900 1", "Done")
    running = await serve(again)
    client = await running.controller()
    assert (await client.post("/api/continue", json={"run": folder.name})).status_code == 200
    events = await events_of(client, is_over)
    kinds = [event["event"] for event in events]
    assert kinds[0] == "start" and kinds.index("resumed") == len(lines.splitlines())
    assert [event["step"] for event in events if event["event"] == "step"] == [1, 2, 3, 4]
    assert [event["number"] for event in events] == list(
        range(events[0]["number"], events[0]["number"] + len(events))
    )
    assert again.events.since(again.began)[0]["event"] == "resumed"


async def test_the_end_does_not_wait_for_pages_that_look_on(make, tmp_path, caplog):
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    service = Service(make()[0], Gate("127.0.0.1", port), tmp_path / "agent.json", lambda: None)
    server = Server(service)
    running = Running(service, f"http://127.0.0.1:{port}")
    serving = asyncio.create_task(server.serve([listener]))
    await until(lambda: server.started)
    client = await running.controller()
    async with (
        client.stream("GET", "/api/events") as events,
        client.stream("GET", "/api/screen") as screen,
    ):
        assert events.status_code == screen.status_code == 200
        server.should_exit = True
        await asyncio.wait_for(serving, PATIENCE)
        assert [line async for line in events.aiter_lines()] == []
    await client.aclose()
    assert [record.message for record in caplog.records if record.name.startswith("uvicorn")] == []
