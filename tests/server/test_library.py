"""/models/library, /models/plan and /models/remove: models found, planned and deleted over HTTP."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pagoda.base.errors import SourceError
from pagoda.config.engine import EngineConfig, ModelConfig
from pagoda.config.server import ServerConfig
from pagoda.core.messages import EngineProgress
from pagoda.doctor import beside
from pagoda.engine.served.fleet import Fleet
from pagoda.engine.served.model_entry import ModelEntry
from pagoda.planner.planned import Advice, PlannedModel, PlanQuestion
from pagoda.server.app import create_app
from pagoda.server.library import shelf
from pagoda.server.library.plans import Plans
from pagoda.weights.hub.models import CachedModel
from tests.server.conftest import RunningServer, wait_until
from tests.server.fakes import FakeClient
from tests.server.test_ollama import whole
from tests.server.test_ollama_pull import Hub, hub, pull

__all__ = ["hub"]

Start = Callable[..., RunningServer]
OPEN = ServerConfig(host="0.0.0.0", disable_uvicorn_access_log=True)


class Cache:
    """Models by name, and what was removed."""

    def __init__(self) -> None:
        self.models = {"minilm": 98, "hf:org/new": 7}
        self.removed: list[str] = []

    def list(self) -> list[CachedModel]:
        return [CachedModel(name, Path("/c"), size, 0.0) for name, size in self.models.items()]

    def remove(self, name: str) -> int:
        self.removed.append(name)
        found = self.models.pop(name if name in self.models else f"hf:{name}", None)
        if found is None:
            raise SourceError(f"The cache has no {name}; it has minilm.")
        return found


class Planner:
    """Answers once it may."""

    def __init__(self) -> None:
        self.asked: list[PlanQuestion] = []
        self.may = threading.Event()
        self.may.set()

    async def plan(self, question: PlanQuestion) -> PlannedModel:
        self.asked.append(question)
        while not self.may.is_set():
            await asyncio.sleep(0.01)
        return PlannedModel("fits", memory=5, context=64, tokens_per_second=40.0)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Cache:
    played = Cache()
    monkeypatch.setattr(shelf, "list_models", played.list)
    monkeypatch.setattr(shelf, "remove", played.remove)
    return played


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Planner]:
    played = Planner()
    yield played
    played.may.set()


def advise(server: RunningServer, planner: Planner) -> RunningServer:
    server.context.plans = Plans(Advice(planner.plan, lambda: ["org/known"]))
    return server


def message(reply: httpx.Response, status: int) -> str:
    assert reply.status_code == status, reply.text
    told: str = reply.json()["error"]["message"]
    return told


def names(server: RunningServer) -> list[str]:
    return [card["id"] for card in whole(server.http.get("/v1/models"))["data"]]


def test_library(start: Start, cache: Cache, planner: Planner, minilm_folder: Path) -> None:
    server = advise(start(FakeClient()), planner)
    embedder = EngineConfig(model=ModelConfig(model=str(minilm_folder)))
    server.context.fleet.add(ModelEntry(("vectors",), embedder))
    server.context.fleet.add(
        ModelEntry(("mine",), EngineConfig(model=ModelConfig(model="minilm")), added=True)
    )
    found = whole(server.http.get("/models/library"))
    assert found["closed"] is None
    assert {"org/known", "smollm2", "minilm"} <= set(found["known"])
    fake, vectors, mine = found["models"]
    assert (fake["name"], fake["status"], fake["chats"]) == ("fake", "loaded", True)
    assert (fake["removable"], mine["removable"]) == (False, True)
    assert (vectors["status"], vectors["chats"]) == ("unloaded", False), "from its headers alone"
    assert fake["memory"] > 1 << 20 and vectors["memory"] == 0
    assert vectors["bytes"] > 80 << 20 and vectors["parameters"] == "22.57M"
    assert found["kept"] == [
        {"name": "minilm", "bytes": 98, "served": "mine"},
        {"name": "hf:org/new", "bytes": 7, "served": None},
    ]
    assert str(minilm_folder) not in str(found), "paths are nobody's business"


def test_what_a_model_that_is_not_loaded_writes(start: Start, minilm_folder: Path) -> None:
    server = start(FakeClient())
    config = EngineConfig(model=ModelConfig(model=str(minilm_folder)))
    server.context.fleet.add(ModelEntry(("vectors",), config))
    reply = whole(server.http.get("/v1/models"))
    *_, card = reply["data"]
    assert card["architecture"]["output_modalities"] == ["embeddings"]
    assert "vectors" not in [model["slug"] for model in reply["models"]]


def test_plan(start: Start, planner: Planner) -> None:
    server = advise(start(FakeClient()), planner)
    reply = whole(server.post("/models/plan", model="org/new:Q4_K_M"))
    assert reply["verdict"] == "fits" and reply["tokens_per_second"] == 40.0
    assert planner.asked[0].config.model.model == "org/new:Q4_K_M"
    assert whole(server.post("/models/plan", model="fake"))["context"] == 64
    assert names(server) == ["fake", "fake-alias"], "planning adds none"
    for name in ("/etc/passwd", "./x", "nosuch"):
        assert "org/name" in message(server.post("/models/plan", model=name), 404)
    assert len(planner.asked) == 2


def test_plans_take_turns(start: Start, planner: Planner) -> None:
    server = advise(start(FakeClient()), planner)
    planner.may.clear()
    found: list[httpx.Response] = []

    def ask() -> None:
        found.append(httpx.post(f"{server.url}/models/plan", json={"model": "fake"}, timeout=60))

    threads = [threading.Thread(target=ask) for _ in range(18)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(found) == 2)
    assert [reply.status_code for reply in found] == [503, 503] and len(planner.asked) == 1
    planner.may.set()
    for thread in threads:
        thread.join()
    assert sum(reply.status_code == 200 for reply in found) == 16


def test_a_server_that_plans_nothing(start: Start) -> None:
    assert "pagoda doctor" in message(start(FakeClient()).post("/models/plan", model="fake"), 501)


def test_remove(start: Start, cache: Cache, hub: Hub) -> None:
    hub.open.set()
    server = start(FakeClient())
    assert whole(pull(server, model="org/new:Q8_0", stream=False))
    assert whole(pull(server, model="hf:org/new", stream=False))
    assert whole(server.post("/models/remove", model="org/new:Q8_0")) == {"freed": 7}
    assert cache.removed == ["org/new"]
    assert names(server) == ["fake", "fake-alias"], "models leave whole"
    assert whole(server.post("/models/remove", model="minilm")) == {"freed": 98}
    assert "no hf:org/new" in message(server.post("/models/remove", model="hf:org/new"), 404)


def test_what_is_not_removed(start: Start, cache: Cache, hub: Hub, tmp_path: Path) -> None:
    server = start(FakeClient())
    config = EngineConfig(model=ModelConfig(model="minilm"))
    entry = ModelEntry(("mine",), config)
    server.context.fleet.add(entry)
    for name in ("mine", "minilm"):
        assert "started with mine" in message(server.post("/models/remove", model=name), 409)
    entry.added, entry.loading = True, True
    assert "unload it first" in message(server.post("/models/remove", model="mine"), 409)
    for name in (str(tmp_path), "/etc", "nosuch"):
        message(server.post("/models/remove", model=name), 404)
    thread = threading.Thread(target=lambda: pull(server, model="org/new", stream=False))
    thread.start()
    wait_until(lambda: bool(hub.asked))
    assert "being fetched" in message(server.post("/models/remove", model="org/new"), 409)
    hub.open.set()
    thread.join()
    assert not cache.removed and tmp_path.is_dir()


def test_an_open_server_without_keys(start: Start, cache: Cache, planner: Planner) -> None:
    server = advise(start(FakeClient(), OPEN), planner)
    found = whole(server.http.get("/models/library"))
    assert "--api-key" in found["closed"] and not found["kept"] and not found["known"]
    assert [model["name"] for model in found["models"]] == ["fake"]
    for path in ("plan", "remove"):
        assert "--api-key" in message(server.post(f"/models/{path}", model="org/new"), 403)
    assert whole(server.post("/models/plan", model="fake"))["verdict"] == "fits"
    assert not cache.removed and len(planner.asked) == 1


@pytest.mark.parametrize("path", ["/models/plan", "/models/remove", "/models/load", "/api/pull"])
def test_pages_of_other_sites_change_nothing(start: Start, cache: Cache, path: str) -> None:
    server = start(FakeClient())
    headers = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
    reply = server.http.post(path, json={"model": "smollm2"}, headers=headers)
    assert reply.status_code == 403 and not cache.removed


async def test_a_start_says_how_far_it_is() -> None:
    app = create_app(Fleet(), ServerConfig())
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
    ) as client:
        first = (await client.get("/health")).json()["progress"]
        assert (first["phase"], first["done"], first["total"]) == ("launch", 0, 0)
        app.state.context.starting = EngineProgress("load weights", 30, 90)
        told = (await client.get("/health")).json()["progress"]
        assert (told["phase"], told["done"], told["total"]) == ("load weights", 30, 90)
        assert 0 <= first["seconds"] <= told["seconds"]


def test_health_says_what_an_engine_that_starts_again_waits_for(start: Start) -> None:
    client = FakeClient()
    server = start(client)
    lost, awaits = "Node 1 (10.0.0.8) is lost.", "wait for node 1 at 10.0.0.7 port 29501"
    client.cause, client.phase, client.state = lost, awaits, "starting"
    for path in ("/health", "/health/ready", "/v1/health", "/ping"):
        reply = server.http.get(path)
        assert reply.status_code == 503 and int(reply.headers["Retry-After"]) > 0
        told = reply.json()
        assert (told["status"], told["cause"]) == ("starting", lost)
        assert told["progress"]["phase"] == awaits and 0 <= told["progress"]["seconds"] < 600
    assert server.http.get("/health/live").status_code == 200
    client.state = "ready"
    assert server.http.get("/health").status_code == 200


async def test_the_doctor_plans_beside_what_runs(
    smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own process, with real headers."""
    config = EngineConfig(model=ModelConfig(model=str(smollm2_gguf)))
    found = await beside.plan_beside(PlanQuestion(config))
    assert (found.verdict, found.context, found.writes) == ("fits", 8192, True)
    assert 0 < found.slowest < found.tokens_per_second < found.fastest
    assert found.memory > found.file_bytes > 90 << 20
    missing = EngineConfig(model=ModelConfig(model=str(smollm2_gguf.parent / "none.gguf")))
    found = await beside.plan_beside(PlanQuestion(missing))
    assert found.verdict == "unknown" and "none.gguf" in found.problem
    monkeypatch.setattr(beside, "PLAN_SECONDS", 0.0)
    found = await beside.plan_beside(PlanQuestion(config))
    assert found.verdict == "unknown" and "Ask again" in found.problem


@pytest.mark.parametrize(
    ("free", "freed", "verdict"),
    [
        (8 << 30, 0, "fits"),
        (100 << 20, 8 << 30, "fits_after_unloading"),
        (100 << 20, 0, "too_large"),
    ],
)
def test_room_that_others_would_leave(
    smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch, free: int, freed: int, verdict: str
) -> None:
    real = beside.this_machine
    config = EngineConfig(model=ModelConfig(model=str(smollm2_gguf)))

    def small(*args: Any) -> Any:
        hardware = real(*args)
        facts = beside.replace(hardware.facts, free_memory=free, total_memory=16 << 30)
        return beside.replace(hardware, facts=facts)

    monkeypatch.setattr(beside, "this_machine", small)
    found = beside.planned(PlanQuestion(config, freed))
    assert found.verdict == verdict
    assert bool(found.problem) is (verdict == "too_large")
