"""The agent's page, used as people use it: in headless Chromium, with a scripted model."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pagoda_agent.base.errors import DriverError
from pagoda_agent.service import gate
from tests.agent.fake_computer import FakeComputer
from tests.agent.model_server import Step
from tests.web.agent_server import AgentServer, serving, wait_until
from tests.web.conftest import Visit, expect

CLICK = "# I click the button\nmouse 500 500 1"
PAY = "# pay\nmouse 500 500 1"
HANGS = Step(hang="before headers")
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
HOSTILE = "<img src=x onerror='window.hacked = 1'><script>window.hacked = 2</script>"


class AgentVisit(Visit):
    server: AgentServer

    def __init__(self, page: Any, server: AgentServer):
        super().__init__(page, server)
        self.leave_asked: list[str] = []
        page.on("dialog", self._leave)

    def _leave(self, dialog: Any) -> None:
        self.leave_asked.append(dialog.type)
        dialog.accept()

    def enter(self, understood: bool = True) -> "AgentVisit":
        if understood:
            self.page.add_init_script("localStorage.setItem('pagoda.agent.risks', 'understood')")
        self.page.goto(self.server.gate.address)
        self.page.wait_for_selector("#pagoda:not(.locked)")
        return self

    def state(self, state: str) -> None:
        self.page.wait_for_selector(f"#state[data-state={state}]")

    def send(self, text: str) -> None:
        self.page.fill("#prompt", text)
        self.page.press("#prompt", "Enter")

    def run(self, task: str = "do it") -> None:
        self.send(task)
        self.state("done")


@pytest.fixture
def visit(browser: Any, tmp_path: Any) -> Iterator[Callable[..., AgentVisit]]:
    """Start an agent with a script, and a browser; `context` are Playwright's options."""
    with contextlib.ExitStack() as stack:

        def start(
            *script: Any, context: dict[str, Any] | None = None, **options: Any
        ) -> AgentVisit:
            server = stack.enter_context(serving(tmp_path, script, **options))
            choices = {"locale": "en-US", "color_scheme": "light", **(context or {})}
            opened = browser.new_context(**choices)
            stack.callback(opened.close)
            page = opened.new_page()
            page.set_default_timeout(20_000)
            return AgentVisit(page, server)

        yield start


@pytest.mark.parametrize("context", [{"viewport": {"width": 1280, "height": 800}}, PHONE])
def test_a_task_from_start_to_end(visit, context: dict[str, Any]) -> None:
    """With every other host out of reach, on a PC's window and on a phone."""
    script = [CLICK, "drag 200 200 800 800\nmouse 500 300 6", "typestr hello", "Done"]
    visitor = visit(*script, context=context)
    page = visitor.page
    elsewhere = re.compile(f"^(?!{re.escape(visitor.server.url)}|data:|blob:)")
    page.route(elsewhere, lambda route: route.abort())
    visitor.enter().state("idle")
    visitor.run("Say hello")
    assert visitor.server.computer.typed == "hello"
    expect(page.locator(".step")).to_have_count(4)
    first = page.locator(".step").first
    expect(first.locator(".thought")).to_have_text("I click the button")
    expect(first.locator(".actions code")).to_have_text("Click (320, 180)")
    expect(first.locator(".result")).to_have_text("Done.")
    expect(first.locator(".effect")).to_contain_text("% of the screen changed")
    expect(page.locator(".note.user").first).to_contain_text("Say hello")
    page.get_by_text("Round 4/20").wait_for()
    expect(page.locator("#meter")).to_contain_text("tokens")
    first.locator(".shot").click()
    page.locator("#large-screen .ink").wait_for(state="attached")
    wait_until(
        lambda: page.evaluate("document.querySelector('#large-screen img').naturalWidth == 640")
    )
    assert not visitor.problems
    assert all(url.startswith((visitor.server.url, "data:", "blob:")) for url in visitor.requested)
    for name in ("#pause", "#reset", "#send", "#screen", "#transcript"):
        box = page.locator(name).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= context["viewport"]["width"], name
        assert box["y"] >= 0 and box["y"] + box["height"] <= context["viewport"]["height"], name


def test_the_screen_is_live_and_marked(visit) -> None:
    visitor = visit("mouse 250 500 1", HANGS).enter()
    page = visitor.page
    visitor.send("look")
    page.locator("#screen .ink").wait_for(state="attached")
    expect(page.locator("#screen .marks")).to_have_attribute("viewBox", "0 0 640 360")
    expect(page.locator("#caption")).to_contain_text("Click (160, 180)")
    pixel = """([x, y]) => {
        const image = document.querySelector("#screen img");
        if (!image.naturalWidth) return null;
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
        const context = canvas.getContext("2d");
        context.drawImage(image, 0, 0);
        return [...context.getImageData(x, y, 1, 1).data.slice(0, 3)];
    }"""
    visitor.server.computer.paint((500, 100, 639, 300), (250, 0, 0))

    # The newest picture is shown although none follows it.
    def is_red() -> bool:
        red, green, _ = page.evaluate(pixel, [600, 200]) or (0, 0, 0)
        return bool(red > 230 and green < 40)

    wait_until(is_red)


def test_pause_hint_and_go_on(visit) -> None:
    visitor = visit(HANGS, "Done").enter()
    page = visitor.page
    visitor.send("wait")
    wait_until(lambda: visitor.server.model.requests)
    page.locator("#prompt:disabled").wait_for(state="attached")
    expect(page.locator(".step .effect")).to_have_text(re.compile("^waits for the model"))
    page.keyboard.press("Escape")
    visitor.state("paused")
    assert visitor.server.state == "paused"
    expect(page.locator(".step .effect")).to_have_text("stopped before anything was done")
    visitor.send("use the keyboard")
    visitor.state("done")
    assert "use the keyboard" in visitor.server.model.requests[-1].said()
    expect(page.locator(".note.user").last).to_contain_text("use the keyboard")


@pytest.mark.parametrize("allow", [True, False])
def test_consent(visit, allow: bool) -> None:
    visitor = visit("# delete the file\nmouse 500 500 1", "Done").enter()
    page = visitor.page
    visitor.send("clean up")
    dialog = page.locator("#consent")
    dialog.wait_for()
    visitor.state("waiting_consent")
    expect(dialog.locator("code")).to_have_text("Click (320, 180)")
    expect(dialog.locator("#consent-reason")).to_contain_text("delet")
    expect(dialog.locator("#countdown")).to_contain_text("Refused in 1")
    dialog.locator(".ink").wait_for(state="attached")
    assert not visitor.server.computer.done("press")
    dialog.get_by_role("button", name="Allow" if allow else "Refuse", exact=True).click()
    visitor.state("done")
    dialog.wait_for(state="hidden")
    assert bool(visitor.server.computer.done("press")) is allow
    page.get_by_text("Allowed" if allow else "Refused", exact=True).wait_for()


def test_consent_that_lasts(visit) -> None:
    lines = "typestr mkdir a\nkeyboard Enter"
    visitor = visit("keyboard ctrl+c", lines, lines, CLICK, PAY, "Done").enter()
    page = visitor.page
    visitor.send("make folders")
    dialog = page.locator("#consent")
    dialog.wait_for()
    offer = '"Allow for this task" lets every line pass that runs nothing but mkdir'
    expect(dialog.locator("#consent-offer")).to_have_text(re.compile(f"^{re.escape(offer)}"))
    dialog.get_by_role("button", name="Allow for this task").click()
    page.locator("#consent-reason", has_text="this click is to 'pay'").wait_for()
    assert visitor.server.computer.log.count(("down", "Enter")) == 2
    expect(dialog.locator("#allow-lasting")).to_be_hidden()
    expect(dialog.locator("#consent-offer")).to_have_text("")
    dialog.get_by_role("button", name="Allow", exact=True).click()
    visitor.state("done")
    note = page.locator(".note", has_text="Allowed for this task")
    expect(note).to_contain_text(offer)
    expect(page.get_by_text("Allowed", exact=True)).to_have_count(1)


def test_escape_stops_while_consent_is_asked(visit) -> None:
    visitor = visit("# delete the file\nmouse 500 500 1").enter()
    visitor.send("clean up")
    visitor.page.locator("#consent").wait_for()
    visitor.page.keyboard.press("Escape")
    visitor.state("paused")
    visitor.page.locator("#consent").wait_for(state="hidden")
    assert not visitor.server.computer.done("press")


def test_the_model_asks(visit) -> None:
    visitor = visit("$ Which of the two files?", "Done").enter()
    visitor.send("open the file")
    visitor.state("waiting_user")
    expect(visitor.page.locator("#wanted")).to_contain_text("Which of the two files?")
    visitor.send("the second")
    visitor.state("done")
    assert "the second" in visitor.server.model.requests[-1].said()


def test_settings(visit) -> None:
    visitor = visit("Done", api_key="sk-first-0123456789abcdef").enter()
    page = visitor.page
    page.click("#open-settings")
    page.locator("#settings").wait_for()
    key = page.locator("[data-field=api_key]")
    expect(key).to_have_value("")
    expect(key).to_have_attribute("placeholder", re.compile(r"\.\.\.cdef"))
    expect(page.locator("[data-field=driver]")).to_have_value("fake:")
    for field, value, words in (
        ("max_rounds", "0", "at least 1"), ("images_kept", "x", "images_kept"),
        ("max_cost", "1", "prices"), ("base_url", "ftp://x", "http://"),
        ("profile", "nothing", "no model profile"),
    ):  # fmt: skip
        node = page.locator(f"[data-field={field}]")
        before = node.input_value()
        node.fill(value)
        page.click("#settings [type=submit]")
        wrong = page.locator(f"[data-field={field}] + .field-wrong", has_text=words)
        wrong.wait_for()
        node.fill(before)
    key.fill("sk-second-0123456789")
    page.fill("[data-field=max_rounds]", "7")
    page.fill("[data-field=max_minutes]", "1.5")
    page.fill("[data-field=allowed_hosts]", "example.org\nexample.com")
    page.select_option("[data-category=close]", "deny")
    page.select_option("[data-field=consent]", "strict")
    page.click("#settings [type=submit]")
    page.locator("#settings").wait_for(state="hidden")
    kept = json.loads(visitor.server.settings_path.read_text())
    assert kept["api_key"] == "sk-second-0123456789" and kept["max_rounds"] == 7
    assert kept["max_minutes"] == 1.5 and kept["allowed_hosts"] == ["example.org", "example.com"]
    assert kept["policy"] == {"close": "deny"} and kept["consent"] == "strict"
    page.click("#open-settings")
    page.locator("#settings").wait_for()
    expect(key).to_have_value("")
    expect(key).to_have_attribute("placeholder", re.compile(r"\.\.\.6789"))
    assert "0123456789" not in page.content()
    page.check("#forget-key")
    page.click("#settings [type=submit]")
    page.locator("#settings").wait_for(state="hidden")
    assert json.loads(visitor.server.settings_path.read_text())["api_key"] == ""


def test_another_computer(visit, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))
    visitor = visit(CLICK, "Done").enter()
    page, operator = visitor.page, visitor.server.operator
    other, wanted = FakeComputer(), []
    other.fails["screenshot"] = DriverError("The cable is out.")

    def make_driver(url: str) -> FakeComputer:
        wanted.append(url)
        return other

    operator.make_driver = make_driver
    page.click("#open-settings")
    page.fill("[data-field=driver]", "pikvm://admin:hunter2@desk")
    page.click("#settings [type=submit]")
    page.locator("[data-field=driver] + .field-wrong", has_text="The cable is out.").wait_for()
    assert operator.driver is visitor.server.computer
    page.click("#settings [type=submit]")
    page.locator("#settings").wait_for(state="hidden")
    assert wanted == ["pikvm://admin:hunter2@desk"] * 2
    visitor.run("click")
    assert other.done("press") and not visitor.server.computer.done("press")
    page.click("#open-settings")
    page.locator("#settings").wait_for()
    expect(page.locator("[data-field=driver]")).to_have_value("pikvm://admin@desk")
    assert "hunter2" not in page.content() and not visitor.problems[1:]


def test_the_computers_buttons(visit) -> None:
    visitor = visit().enter()
    page = visitor.page
    page.click("#open-settings")
    buttons = page.locator("#buttons button")
    buttons.first.wait_for()
    expect(buttons).to_have_count(4)
    page.get_by_role("button", name="Hold its power button").click()
    asked = page.locator("dialog.ask")
    expect(asked).to_contain_text("may be lost")
    assert not visitor.server.computer.log
    asked.get_by_role("button", name="Hold its power button").click()
    page.get_by_text("Done: Hold its power button").wait_for()
    assert visitor.server.computer.log == [("power", "hold")]


def test_what_a_model_says_is_text(visit) -> None:
    script = [f"# {HOSTILE}\ntypestr {HOSTILE}", f"$ {HOSTILE}", f"# {HOSTILE}\nDone"]
    visitor = visit(*script).enter()
    page = visitor.page
    visitor.send(HOSTILE)
    visitor.state("waiting_user")
    visitor.send(HOSTILE)
    visitor.state("done")
    page.click("#open-history")
    page.get_by_role("button", name="Step through").click()
    page.locator("#viewer").wait_for()
    wait_until(lambda: page.locator("#transcript").inner_text().count(HOSTILE) >= 4)
    assert page.evaluate("window.hacked") is None
    expect(page.locator("#transcript script, #transcript [onerror]")).to_have_count(0)
    assert not visitor.problems


def test_history(visit) -> None:
    visitor = visit(CLICK, "typestr hello", "Done").enter()
    page = visitor.page
    visitor.run("Say hello")
    page.click("#reset")
    visitor.state("idle")
    expect(page.locator(".step")).to_have_count(0)
    page.click("#open-history")
    page.locator("#history").wait_for()
    row = page.locator("#runs li")
    expect(row).to_contain_text("Say hello")
    expect(row).to_contain_text("3 steps")
    with page.expect_download() as download:
        row.get_by_text("Export as HTML").click()
    html = download.value.path().read_text()
    assert "Say hello" in html and "data:image/jpeg;base64," in html
    row.get_by_role("button", name="Step through").click()
    viewer = page.locator("#viewer")
    viewer.wait_for()
    expect(viewer.locator(".actions code")).to_have_text("Click (320, 180)")
    viewer.locator(".ink").wait_for(state="attached")
    viewer.locator("#next").click()
    expect(viewer.locator(".actions code")).to_contain_text("hello")
    expect(viewer.locator("#position-text")).to_have_text("2 / 3")
    assert not visitor.problems


@pytest.mark.parametrize(
    ("ended", "shown"),
    [([], "Cut off"), ([{"event": "state", "state": "failed", "reason": "a cap"}], "Failed")],
)
def test_a_run_that_was_cut_off_or_failed_goes_on(ended, shown, visit, tmp_path) -> None:
    folder = tmp_path / "runs" / "20260101-000000-abcdef"
    folder.mkdir(parents=True)
    start = {"event": "start", "time": 1.0, "task": "Old task", "model": "m", "driver": "fake"}
    lines = [start, *ended]
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    visitor = visit("Done").enter()
    page = visitor.page
    page.click("#open-history")
    expect(page.locator("#runs li")).to_contain_text(shown)
    page.get_by_role("button", name="Continue").click()
    visitor.state("done")
    assert "Old task" in visitor.server.model.requests[-1].said()


def test_going_on_shows_what_was_done_before(visit, tmp_path) -> None:
    visitor = visit(CLICK, HANGS).enter()
    page = visitor.page
    visitor.send("Click twice")
    page.locator(".step").nth(1).wait_for()
    (folder,) = (tmp_path / "runs").iterdir()
    journal = (folder / "journal.jsonl").read_text()
    page.click("#reset")
    page.locator("dialog.ask").get_by_role("button", name="Reset").click()
    visitor.state("idle")
    (folder / "journal.jsonl").write_text(journal)  # as kill -9 leaves it
    visitor.server.model.script = [CLICK, "Done"]
    page.click("#open-history")
    page.get_by_role("button", name="Continue").click()
    visitor.state("done")
    expect(page.locator(".step")).to_have_count(4)
    first = page.locator(".step").first
    expect(first.locator(".actions code")).to_have_text("Click (320, 180)")
    expect(first.locator(".result")).to_contain_text("Done.")
    titles = ["Task", "Goes on where it was cut off", "Done"]
    expect(page.locator(".note b")).to_have_text(titles)
    first.locator(".shot").click()
    page.locator("#large-screen .ink").wait_for(state="attached")
    wait_until(
        lambda: page.evaluate("document.querySelector('#large-screen img').naturalWidth == 640")
    )


def test_the_risks_come_first(visit) -> None:
    visitor = visit().enter(understood=False)
    page = visitor.page
    risks = page.locator("#risks")
    risks.wait_for()
    for _ in range(3):
        page.keyboard.press("Escape")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(risks).to_be_visible()
    page.get_by_role("button", name="I understand").click()
    risks.wait_for(state="hidden")
    wait_until(lambda: page.evaluate("localStorage.getItem('pagoda.agent.risks') == 'understood'"))


def test_the_address_works_once(visit, browser) -> None:
    visitor = visit()
    address = visitor.server.gate.address
    visitor.enter()
    assert "#" not in visitor.page.url
    elsewhere = browser.new_context(locale="en-US")
    other = elsewhere.new_page()
    other.goto(address)
    other.get_by_text("This address was used before").wait_for()
    expect(other.locator("body")).to_have_text(re.compile(r"^\s*This address"), use_inner_text=True)
    expect(other.locator("#screen, header").first).to_be_hidden()
    elsewhere.close()


def test_an_agent_that_ended_is_said(visit) -> None:
    visitor = visit()
    visitor.page.route("**/api/events*", lambda route: route.abort())
    visitor.page.goto(visitor.server.gate.address)
    visitor.page.get_by_text("cannot be reached").wait_for()
    expect(visitor.page.locator("header").first).to_be_hidden()


def test_a_second_tab_shows_one_sentence(visit) -> None:
    visitor = visit().enter()
    second = visitor.page.context.new_page()
    second.goto(visitor.server.url)
    second.get_by_text("open in another tab").wait_for()
    expect(second.locator("header").first).to_be_hidden()
    second.close()
    assert not visitor.server.exited.is_set(), "only the controller's goodbye counts"


@pytest.mark.parametrize("exits", [True, False])
def test_closing_the_page(visit, monkeypatch, exits: bool) -> None:
    monkeypatch.setattr(gate, "GONE_SECONDS", 0.5)
    visitor = visit("typestr " + "x" * 5000, exits=exits)
    computer = visitor.server.computer
    computer.typing_pause = 0.01
    visitor.enter().send("type")
    wait_until(lambda: computer.typed)
    with visitor.page.expect_event("close"):  # handles the question of whether to leave
        visitor.page.close(run_before_unload=True)
    wait_until(lambda: visitor.server.state == "paused")
    assert computer.held == () and len(computer.typed) < 5000
    if exits:
        assert visitor.server.exited.wait(20)


def test_a_reload_stops_the_task_and_not_the_agent(visit) -> None:
    visitor = visit("typestr " + "x" * 5000, "Done")
    computer = visitor.server.computer
    computer.typing_pause = 0.01
    page = visitor.enter().page
    visitor.send("type")
    wait_until(lambda: computer.typed)
    page.reload()
    assert len(visitor.leave_asked) == 1
    visitor.state("paused")
    assert computer.held == () and len(computer.typed) < 5000
    expect(page.locator(".step")).to_have_count(1)
    page.click("#pause")
    visitor.state("done")
    page.reload()
    visitor.state("done")
    assert len(visitor.leave_asked) == 1 and not visitor.server.exited.is_set()


def test_loading_again_takes_up_where_it_was(visit) -> None:
    visitor = visit(CLICK, HANGS, exits=False).enter()
    page = visitor.page
    visitor.send("look")
    page.locator(".step").nth(1).wait_for()
    page.reload()
    visitor.state("paused")
    page.locator(".step").nth(1).wait_for()
    expect(page.locator(".step")).to_have_count(2)
