"""The models' dialog and the progress of loading, used as people use them."""

import asyncio
import re
import threading
import time
from itertools import pairwise
from typing import Any

import pytest

from pagoda.base.errors import EngineDeadError
from pagoda.config.engine import EngineConfig, ModelConfig
from pagoda.config.server import ServerConfig
from pagoda.core.messages import EngineProgress
from pagoda.engine.served.model_entry import ModelEntry
from pagoda.planner.planned import Advice, PlannedModel, PlanQuestion
from pagoda.server.library import shelf
from pagoda.server.library.plans import Plans
from tests.server.conftest import wait_until
from tests.server.test_library import Cache
from tests.server.test_ollama_pull import Hub, hub
from tests.web.conftest import Visit, expect

__all__ = ["hub"]

PLANS = {
    "fake": PlannedModel("fits", context=2048, tokens_per_second=40.4, slowest=30.0, fastest=50.0),
    "Qwen/Qwen3-8B": PlannedModel("too_large", "It needs 16 GiB, and 8 GiB are free."),
    "org/new": PlannedModel("fits_after_unloading", context=4096, tokens_per_second=5.04),
}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


async def plan(question: PlanQuestion) -> PlannedModel:
    names = question.config.model.served_model_name or ("fake",)
    return PLANS.get(names[0], PlannedModel("unknown", "The hub is far."))


class Loading:
    """What the test decides of a load: how far it is, and how it ends."""

    def __init__(self, visitor: Visit, name: str):
        self.fleet = visitor.server.context.fleet
        self.entry = ModelEntry((name,), EngineConfig(model=ModelConfig(model="nobody/nothing")))
        self.ended = threading.Event()
        self.failure: EngineDeadError | None = None
        self.fleet.add(self.entry)
        # What a load does is the test's to say, and its steps are told one by one.
        self.fleet._load = self._load  # type: ignore[method-assign,assignment]  # a double

    async def _load(self, entry: ModelEntry) -> Any:
        entry.loading, entry.failure, entry.load_began = True, None, time.monotonic()
        self.fleet._advance(entry, EngineProgress("load weights", 43, 100))
        while not self.ended.is_set():
            await asyncio.sleep(0.01)
        entry.loading, entry.failure = False, self.failure
        if self.failure is None:
            entry.served = self.fleet.entries[0].served
        self.fleet._tell(entry)
        return entry.served


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Cache:
    played = Cache()
    monkeypatch.setattr(shelf, "list_models", played.list)
    monkeypatch.setattr(shelf, "remove", played.remove)
    return played


@pytest.fixture
def library(visit, cache: Cache, hub: Hub):
    """Open the dialog of a server that plans."""

    def start(config: ServerConfig | None = None, **options: Any) -> Visit:
        visitor: Visit = visit(config=config, **options)
        known = ["Qwen/Qwen3-8B", "org/other"]
        visitor.server.context.plans = Plans(Advice(plan, lambda: known))
        visitor.open().page.click("#open-models")
        return visitor

    return start


def row(visitor: Visit, name: str) -> Any:
    return visitor.page.locator(f"#models li[data-model='{name}']")


def test_what_is_here(library) -> None:
    visitor = library()
    fake = row(visitor, "fake")
    expect(fake.locator(".verdict")).to_have_text(
        "Fits, about 40 tok/s here · 2,048 tokens of context"
    )
    expect(fake.locator(".state")).to_have_text("loaded")
    # Nobody chose it: it is the server's first.
    expect(fake.get_by_role("button", name="In use", exact=True)).to_be_disabled()
    expect(fake.get_by_role("button", name="Use", exact=True)).to_have_count(0)
    expect(row(visitor, "minilm")).to_contain_text("1 MiB")
    expect(row(visitor, "minilm").locator(".verdict")).to_have_text("The hub is far.")
    assert not visitor.problems


def test_a_model_is_found_planned_and_fetched(library, hub: Hub) -> None:
    visitor = library()
    page = visitor.page
    page.fill("#find-name", "qwen3")
    page.get_by_role("button", name="Will it fit?").first.click()
    found = row(visitor, "Qwen/Qwen3-8B")
    expect(found.locator(".verdict")).to_have_text(
        "Does not fit: It needs 16 GiB, and 8 GiB are free."
    )
    page.fill("#find-name", "org/new")
    page.press("#find-name", "Enter")
    # The cache has it under the hub's full name.
    found = page.locator("#found-list li[data-model='org/new']")
    expect(found.locator(".verdict")).to_contain_text("once others are unloaded, about 5.0 tok/s")
    found.get_by_role("button", name="Fetch").click()
    expect(found.locator("progress")).to_have_attribute("value", "0.2")
    expect(found.locator(".done")).to_contain_text("20%")
    found.get_by_role("button", name="Cancel").click()
    page.locator("#toast.shown", has_text="Cancelled").wait_for()
    wait_until(lambda: hub.given_up == 1)
    hub.open.set()
    found.get_by_role("button", name="Fetch").click()
    new = page.locator("#model-list li[data-model='org/new']")
    new.get_by_role("button", name="Use").click()
    expect(page.locator("#models")).to_be_hidden()
    expect(page.locator("#model")).to_have_value("org/new")


def test_a_fetch_that_fails_says_why(library, hub: Hub) -> None:
    visitor = library()
    page = visitor.page
    hub.error = "The hub has no org/other; look at its name."
    hub.open.set()
    page.fill("#find-name", "other")
    page.locator("#found-list").get_by_role("button", name="Fetch").click()
    page.locator("#toast.shown", has_text="look at its name").wait_for()
    page.fill("#find-name", "nosuch")
    expect(page.locator("#none-found")).to_be_visible()


def test_unload_and_remove_are_asked_first(library, cache: Cache) -> None:
    visitor = library()
    page = visitor.page
    row(visitor, "minilm").get_by_role("button", name="Delete").click()
    page.locator("dialog.ask").get_by_role("button", name="Cancel").click()
    row(visitor, "minilm").get_by_role("button", name="Delete").click()
    asked = page.locator("dialog.ask")
    expect(asked).to_contain_text("Delete minilm from this machine?")
    assert not cache.removed
    asked.get_by_role("button", name="Delete").click()
    expect(row(visitor, "minilm")).to_have_count(0)
    assert cache.removed == ["minilm"]
    row(visitor, "fake").get_by_role("button", name="Unload").click()
    expect(row(visitor, "fake").locator(".state")).to_have_text("loaded")
    page.locator("dialog.ask").get_by_role("button", name="Unload").click()
    expect(row(visitor, "fake").locator(".state")).to_have_text("loads on first use")
    assert visitor.server.client.stopped


def test_a_server_that_is_open_to_the_network(library) -> None:
    config = ServerConfig(host="0.0.0.0", disable_uvicorn_access_log=True)
    page = library(config).page
    expect(page.locator("#models-closed")).to_contain_text("--api-key")
    expect(page.locator("#find")).to_be_hidden()
    expect(page.locator("#kept")).to_be_hidden()


def test_vectors_are_no_chats(visit, minilm_folder) -> None:
    visitor = visit()
    config = EngineConfig(model=ModelConfig(model=str(minilm_folder)))
    visitor.server.context.fleet.add(ModelEntry(("vectors",), config))
    page = visitor.open().page
    expect(page.locator("#model option")).to_have_text(["fake", "fake-alias"])
    page.click("#open-models")
    expect(row(visitor, "vectors")).to_contain_text("makes vectors, no chats")
    expect(row(visitor, "vectors").get_by_role("button")).to_have_text(["Load"])


def test_loading_is_seen(visit) -> None:
    visitor = visit()
    load = Loading(visitor, "slow")
    page = visitor.open().page
    page.select_option("#model", "slow")
    expect(page.locator("#model-state")).to_have_text("loads on first use")
    page.click("#open-models")
    row(visitor, "slow").get_by_role("button", name="Load").click()
    expect(row(visitor, "slow").locator(".done")).to_contain_text("loading weights 43%")
    page.click("#close-models")
    expect(page.locator("#model-state")).to_contain_text("loading weights 43% · ")
    expect(page.locator("#model-progress")).to_have_attribute("value", "0.43")
    # It never looks dead: the seconds go on.
    expect(page.locator("#model-state")).to_have_text(re.compile(r"43% · (?![01] )\d+ s"))
    load.ended.set()
    page.locator("#model-state[data-state=ready]").wait_for()
    expect(page.locator("#model-progress")).to_be_hidden()


def test_a_load_that_fails_says_why_and_can_be_tried_again(visit) -> None:
    visitor = visit(context=PHONE)
    load = Loading(visitor, "broken")
    load.failure = EngineDeadError("The file is broken; fetch it again.")
    load.ended.set()
    page = visitor.open().page
    page.select_option("#model", "broken")
    page.click("#open-models")
    row(visitor, "broken").get_by_role("button", name="Load").click()
    expect(row(visitor, "broken").locator(".wrong")).to_contain_text("fetch it again")
    page.click("#close-models")
    trouble = page.locator("#model-trouble")
    expect(trouble).to_contain_text("broken could not be loaded: The file is broken; fetch it")
    box = trouble.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390
    load.failure = None
    trouble.get_by_role("button", name="Try again").click()
    page.locator("#model-state[data-state=ready]").wait_for()
    expect(trouble).to_be_hidden()


def test_a_server_that_starts_says_how_far_it_is(visit) -> None:
    visitor = visit()
    page = visitor.page
    progress = {"phase": "load weights", "done": 1, "total": 4, "seconds": 7.0}
    starting = {"status": "starting", "cause": None, "progress": progress}
    page.route("**/health", lambda route: route.fulfill(status=503, json=starting))
    page.route("**/v1/models", lambda route: route.fulfill(status=503, json={}))
    visitor.open()
    page.locator("#model-state", has_text="loading weights 25% · ").wait_for()
    starting["progress"] = {
        "phase": "wait for node 1 at 10.0.0.7 port 29501", "done": 0, "total": 0, "seconds": 7.0
    }  # fmt: skip
    text = "waiting for node 1 at 10.0.0.7 port 29501 · "
    page.locator("#model-state", has_text=text).wait_for()
    page.unroute("**/health")
    page.unroute("**/v1/models")
    page.locator("#model-state[data-state=ready]").wait_for()


@pytest.mark.parametrize("context", [{}, {**PHONE, "locale": "zh-CN", "color_scheme": "dark"}])
def test_the_dialog_fits_the_screen(library, context: dict[str, Any]) -> None:
    visitor = library(context=context)
    page = visitor.page
    wide = page.viewport_size["width"]
    expect(row(visitor, "fake").locator(".verdict")).to_contain_text("40")
    box = page.locator("#models").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= wide
    assert page.evaluate("(() => { const d = document.querySelector('#models');"
                         " return d.scrollWidth <= d.clientWidth; })()")  # fmt: skip
    expect(page.locator("#models h2")).to_have_text("模型" if context else "Models")


@pytest.mark.parametrize("name", ["fake", "org/a-model-with-a-very-long-name-Instruct-GGUF:Q4_K_M"])
@pytest.mark.parametrize("width", [320, 390])
def test_the_head_is_one_row_on_a_phone(visit, name: str, width: int) -> None:
    visitor = visit(context={**PHONE, "viewport": {"width": width, "height": 844}})
    page = visitor.page
    models = {"data": [{"id": name}, {"id": "other"}]}
    page.route("**/v1/models", lambda route: route.fulfill(json=models))
    visitor.open()
    state = page.locator("#model-state[data-state=ready]")
    state.wait_for()
    ids = ["toggle-menu", "model", "open-models", "compare", "open-tools", "open-options"]
    boxes = [page.locator(f"#{one}").bounding_box() for one in [*ids, "toggle-theme"]]
    middles = [box["y"] + box["height"] / 2 for box in boxes]
    assert max(middles) - min(middles) < 4
    for left, right in pairwise(boxes):
        assert left["x"] + left["width"] <= right["x"]
    assert boxes[0]["x"] >= 0 and boxes[-1]["x"] + boxes[-1]["width"] <= width
    assert boxes[1]["width"] >= 60
    # Its dot is seen.
    assert state.bounding_box()["width"] >= 8
