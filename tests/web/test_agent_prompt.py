"""The system prompt in the settings, what a task used, and the sentence on fees."""

from pagoda_agent.dialects.rules import BUILT_IN, FORMAT
from tests.agent.model_server import Step
from tests.web.conftest import expect
from tests.web.test_agent_page import visit

__all__ = ["visit"]

FIELD = "[data-field=system_prompt]"


def test_the_prompt_is_shown_changed_and_restored(visit) -> None:
    visitor = visit("Done", "Done").enter()
    page = visitor.page
    page.click("#open-settings")
    page.locator("#settings").wait_for()
    expect(page.locator("#prompt-state")).to_have_text("(built-in)")
    page.locator("#system-prompt summary").press("Enter")
    expect(page.locator(FIELD)).to_have_value(BUILT_IN)
    expect(page.locator("#prompt-format")).to_contain_text("mouse X Y B")
    expect(page.locator("#prompt-profile")).to_contain_text("nanokvm")
    expect(page.locator("#restore-prompt")).to_be_disabled()
    page.fill(FIELD, "Just click.")
    expect(page.locator("#prompt-state")).to_have_text("(your own)")
    page.click("#settings [type=submit]")
    expect(page.locator(f"{FIELD} + .field-wrong")).to_contain_text(f"must have {FORMAT} once")
    own = f"Go slowly.\n{FORMAT}"
    page.fill(FIELD, own)
    page.click("#settings [type=submit]")
    page.locator("#settings").wait_for(state="hidden")
    visitor.run()
    sent = visitor.server.model.requests[0].body["messages"][0]["content"]
    assert sent.startswith("Go slowly.\n- ") and "mouse X Y B" in sent
    page.get_by_text("What the model was told").click()
    expect(page.locator(".note pre")).to_have_text(sent)
    page.click("#open-settings")
    expect(page.locator(FIELD)).to_have_value(own)
    page.locator("#system-prompt").evaluate("node => { node.open = true; }")
    page.click("#restore-prompt")
    expect(page.locator(FIELD)).to_have_value(BUILT_IN)
    page.click("#settings [type=submit]")
    page.locator("#settings").wait_for(state="hidden")
    assert visitor.server.operator.settings.system_prompt == ""
    assert not visitor.problems[1:], "but the refused settings"


def test_what_a_task_used_stands_at_its_end(visit) -> None:
    visitor = visit("mouse 500 500 1", "Done", price_input=10.0, price_output=20.0).enter()
    visitor.run()
    used = "2 calls of the model · 200 tokens read (80 of them cached), 20 written · cost 0.0024"
    expect(visitor.page.locator(".note.done .used")).to_have_text(used)


def test_a_server_that_does_not_say_what_was_used(visit) -> None:
    visitor = visit(Step("Done", usage=None)).enter()
    visitor.run()
    used = "1 call of the model · its server did not say how many tokens"
    expect(visitor.page.locator(".note.done .used")).to_have_text(used)
    expect(visitor.page.locator("#meter")).not_to_contain_text("tokens")


def test_fees_stand_beside_the_risks(visit) -> None:
    page = visit().enter(understood=False).page
    expect(page.locator("#risks li").last).to_contain_text("A paid API charges for each step")
    page.click("#accept-risks")
    page.click("#open-settings")
    expect(page.locator("#settings [data-word=fees]")).to_contain_text("880 tokens")
