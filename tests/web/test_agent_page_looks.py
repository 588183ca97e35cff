"""What the agent's page looks like and says: sizes, languages, a clock that goes on."""

import re
from typing import Any

import pytest

from tests.web.agent_server import wait_until
from tests.web.conftest import expect
from tests.web.test_agent_page import CLICK, HANGS, PHONE, visit

__all__ = ["visit"]


def test_the_clock_goes_on_while_the_model_is_silent(visit) -> None:
    visitor = visit(HANGS).enter()
    visitor.send("wait")
    visitor.page.get_by_text(re.compile("· [2-9] s$")).wait_for()


@pytest.mark.parametrize("context", [{"viewport": {"width": 1400, "height": 900}}, PHONE])
def test_a_long_base_url_can_be_read(visit, context: dict[str, Any]) -> None:
    page = visit(context=context).enter().page
    page.click("#open-settings")
    field = page.locator("[data-field=base_url]")
    field.fill("http://127.0.0.1:38000/v1")
    assert field.evaluate("node => node.scrollWidth <= node.clientWidth")


def test_nothing_moves_or_is_covered_on_a_phone(visit) -> None:
    script = ["# delete the file\nmouse 500 500 1", "$ Which of the two files?", "Done"]
    visitor = visit(*script, context=PHONE).enter()
    visitor.state("idle")
    page = visitor.page
    header = page.locator("header").first
    height = header.bounding_box()["height"]
    visitor.send("clean up")
    visitor.state("waiting_consent")
    page.locator("#meter", has_text="1").wait_for()
    assert header.bounding_box()["height"] == height
    page.click("#refuse")
    visitor.state("waiting_user")
    assert header.bounding_box()["height"] == height
    visitor.send("none")
    visitor.state("done")
    page.evaluate("document.querySelector('#toast').textContent = 'It failed. '.repeat(30)")
    toast, composer = (
        page.locator("#toast").bounding_box(),
        page.locator("#composer").bounding_box(),
    )
    assert toast["y"] > 0 and toast["y"] + toast["height"] < composer["y"]


def test_the_history_of_a_long_task(visit) -> None:
    visitor = visit("Done").enter()
    page = visitor.page
    visitor.run("Say hello to everyone. " * 800)
    page.click("#open-history")
    row = page.locator("#runs li")
    assert row.locator("b").bounding_box()["height"] < 100
    expect(row).to_contain_text("1 step ·")
    row.get_by_role("button", name="Step through").click()
    page.locator("#viewer").wait_for()
    assert page.locator("#viewer-title").bounding_box()["height"] < 100


def test_what_the_agent_says_in_chinese(visit) -> None:
    script = ["sleep 1", "# delete it\nmouse 500 500 1", HANGS]
    visitor = visit(*script, context={"locale": "zh-CN"}).enter()
    page = visitor.page
    visitor.send("你好")
    page.locator("#refuse").click()
    wait_until(lambda: len(visitor.server.model.requests) == 3)
    page.locator("#consent").wait_for(state="hidden")
    page.keyboard.press("Escape")
    visitor.state("paused")
    expect(page.locator(".result")).to_have_text(
        [
            "等待了 1 秒。",
            "被用户拒绝：据它自己所说，这次点击是要 'delete'。不要再次尝试。",
        ]
    )
    expect(page.locator(".note").last).to_contain_text("已由用户暂停。")
    page.click("#open-settings")
    page.fill("[data-field=max_rounds]", "0")
    page.click("#settings [type=submit]")
    wrong = page.locator("[data-field=max_rounds] + .field-wrong")
    expect(wrong).to_have_text("设置有误：max_rounds 至少为 1。")
    page.click("#settings .close")
    page.click("#open-history")
    with page.expect_download() as download:
        page.get_by_text("导出为 HTML").click()
    html = download.value.path().read_text()
    assert not visitor.leave_asked
    assert "第 2 步" in html and "等待了 1 秒。" in html and "已由用户暂停。" in html
    page.get_by_role("button", name="逐步查看").click()
    page.click("#viewer .close")
    page.click("#history .close")
    page.route("**/api/resume", lambda route: route.fulfill(
        status=409, json={"error": "The task is failed, not paused."}
    ))  # fmt: skip
    page.click("#pause")
    page.get_by_text("任务并未暂停 (失败)。").wait_for()


def test_in_chinese_and_dark(visit) -> None:
    script = ["# delete the file\nmouse 500 500 1", "keyboard Enter", "Done"]
    visitor = visit(*script, context={"locale": "zh-CN", "color_scheme": "dark"}).enter()
    page = visitor.page
    expect(page.locator("#state")).to_have_text("空闲")
    expect(page.locator("#send")).to_have_text("提交")
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
    visitor.send("你好")
    page.locator("#consent").wait_for()
    reason = "据它自己所说，这次点击是要 'delete'。"
    expect(page.locator("#consent-reason")).to_have_text(reason)
    page.click("#allow")
    offer = (
        "“本次任务中允许”会放行任何一行，无论其内容，直到任务结束或暂停；已知危险的命令仍会询问。"
    )
    page.locator("#consent-offer", has_text=offer).wait_for()
    page.get_by_role("button", name="本次任务中允许").click()
    visitor.state("done")
    expect(page.locator("#transcript")).to_contain_text(reason)
    expect(page.locator("#transcript")).to_contain_text(
        f"已在本次任务中允许 {offer}", use_inner_text=True
    )
    expect(page.locator(".result").first).to_have_text("完成。")
    expect(page.locator("#state")).to_have_text("完成")
    dark = page.evaluate("getComputedStyle(document.querySelector('#pagoda')).backgroundColor")
    assert dark == "rgb(28, 27, 26)"
    page.click("#toggle-theme")
    light = page.evaluate("getComputedStyle(document.querySelector('#pagoda')).backgroundColor")
    assert light == "rgb(255, 255, 255)"


def test_on_a_phone(visit) -> None:
    visitor = visit(CLICK, "# delete it\nmouse 100 900 1", "Done", context=PHONE).enter()
    page = visitor.page
    visitor.send("tidy up")
    page.locator("#consent").wait_for()
    for name in ("#allow", "#refuse"):
        box = page.locator(name).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390
        assert box["y"] + box["height"] <= 844
    page.tap("#allow")
    visitor.state("done")
    screen, talk = (page.locator(name).bounding_box() for name in ("#stage", "#talk"))
    assert screen["y"] + screen["height"] <= talk["y"] + 1 and talk["width"] == 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    send = page.locator("#send").bounding_box()
    assert send["y"] + send["height"] <= 844
    page.tap("#open-settings")
    page.locator("#settings").wait_for()
    assert page.locator("#settings").bounding_box()["width"] <= 390


def test_one_button_pauses_and_goes_on(visit) -> None:
    visitor = visit(HANGS, HANGS, "Done").enter()
    page = visitor.page
    button = page.locator("#pause")
    expect(button).to_be_disabled()
    visitor.send("wait")
    wait_until(lambda: len(visitor.server.model.requests) == 1)
    expect(button).to_have_text("Pause")
    button.click()
    expect(button).to_have_text("Go on")
    page.keyboard.press("Escape")  # stops, and never goes on
    visitor.state("paused")
    expect(page.locator("#send")).to_be_disabled()
    button.click()
    wait_until(lambda: len(visitor.server.model.requests) == 2)
    expect(button).to_have_text("Pause")
    button.click()
    visitor.state("paused")
    page.fill("#prompt", "use the keyboard")
    button.click()
    visitor.state("done")
    assert "use the keyboard" in visitor.server.model.requests[-1].said()
    expect(page.locator("#reset")).to_have_text("Reset")
    assert not visitor.problems


CALLED = """() => {
    window.called = [];
    window.AudioContext = class {
        currentTime = 0;
        destination = {};
        resume() { called.push("sound"); }
    };
    const node = class { connect(to) { return to; } start() {} stop() {}
                         gain = { setTargetAtTime() {} }; };
    window.OscillatorNode = window.GainNode = node;
    window.Notification = class extends EventTarget {
        static permission = "default";
        static async requestPermission() { called.push("permission"); this.permission = "granted"; }
        constructor(title, { body }) { super(); called.push(title, body); }
        close() {}
    };
    document.hasFocus = () => false;
}"""


def test_who_looks_elsewhere_is_called(visit) -> None:
    visitor = visit("# delete it\nmouse 500 500 1", "# delete it\nmouse 100 100 1", "Done")
    page = visitor.page
    page.add_init_script(f"({CALLED})()")
    visitor.enter()
    expect(page).to_have_title("Idle · Pagoda agent")
    visitor.send("tidy up")
    dialog = page.locator("#consent")
    dialog.wait_for()
    expect(page).to_have_title("● Needs consent · Pagoda agent")
    wait_until(
        lambda: page.evaluate("called.length == 1 && called[0] == 'sound'")
    )  # nothing unasked
    dialog.locator("#allow").click()
    wait_until(lambda: page.evaluate("called.length == 2"))
    page.click("#consent-pause")
    visitor.state("paused")
    page.click("#open-settings")
    page.locator("#settings").wait_for()
    page.click("#notify")
    expect(page.locator("#notify")).to_be_hidden()
    expect(page.locator("#notify-state")).to_contain_text("Notifications are on")
    page.uncheck("#sound")
    page.click("#settings .close")
    visitor.server.model.script = ["# delete it\nmouse 100 900 1", "Done"]
    page.click("#pause")
    dialog.wait_for()
    wait_until(lambda: page.evaluate("called.at(-2) == 'Pagoda agent: Needs consent'"))
    assert page.evaluate("called.at(-1)") == "By its own words this click is to 'delete'."
    assert page.evaluate("called.filter((one) => one == 'sound').length") == 2
    dialog.locator("#refuse").click()
    visitor.state("done")
    expect(page).to_have_title("Done · Pagoda agent")
    page.reload()
    page.click("#open-settings")
    expect(page.locator("#sound")).not_to_be_checked()


def test_a_kind_of_click_is_allowed_for_the_task(visit) -> None:
    sends = "# I send it\nmouse 500 500 1"
    visitor = visit(sends, sends, "# I delete it\nmouse 500 500 1", "Done").enter()
    page = visitor.page
    visitor.send("send both")
    dialog = page.locator("#consent")
    dialog.wait_for()
    expect(page.locator("#consent-offer")).to_contain_text("every click pass that is to 'send'")
    dialog.get_by_role("button", name="Allow for this task").click()
    expect(page.locator("#consent-reason")).to_have_text(
        "By its own words this click is to 'delete'."
    )
    assert len(visitor.server.computer.done("press")) == 2
    dialog.locator("#refuse").click()
    visitor.state("done")
    expect(page.locator("#transcript")).to_contain_text("Allowed for this task")
