"""What each request holds: pictures, pairs of calls and results, an unchanged beginning."""

import json

import pytest

from pagoda_agent.base.errors import ConfigError
from pagoda_agent.dialects.anthropic import Anthropic
from pagoda_agent.dialects.nanokvm import NanoKvm
from pagoda_agent.dialects.openai import OpenAI
from pagoda_agent.dialects.qwen import Qwen
from pagoda_agent.dialects.rules import BUILT_IN, FORMAT
from pagoda_agent.models.dialogue import Picture, Reply, ToolCall
from pagoda_agent.models.endpoint import Endpoint
from pagoda_agent.models.registry import make_model
from pagoda_agent.secrets import Secrets
from pagoda_agent.task.history import History, system_text
from tests.agent.dialect_cases import FULL, SCREEN
from tests.agent.model_server import ModelServer, Step

WAIT = {"action": "wait", "time": 1}
PAIRS = [
    ("openai", NanoKvm(), Step("# wait\nsleep 1")),
    ("openai", Qwen(as_tools=True), Step("I wait.", (("c", "computer_use", json.dumps(WAIT)),))),
    (
        "anthropic",
        Anthropic(),
        Step("I wait.", (("c", "computer", '{"action": "wait", "duration": 1}'),), "Hm."),
    ),
    (
        "responses",
        OpenAI(),
        Step("I wait.", (("c", "computer", '{"actions": [{"type": "wait"}]}'),), "Hm."),
    ),
    ("dashscope", NanoKvm(), Step("# wait\nsleep 1")),
]
IDS = ["text", "tools", "anthropic", "responses", "dashscope"]


def picture(number):
    return Picture(b"picture %d" % number, "image/png", SCREEN)


def numbered(step, number):
    """The same step with call ids of its own."""
    calls = tuple((f"{call_id}{number}", name, a) for call_id, name, a in step.tool_calls)
    return Step(step.text, calls, step.reasoning)


def base(api, server):
    return f"{server.url}/api/v1" if api == "dashscope" else f"{server.url}/v1"


async def run(api, dialect, step, *, steps, **how):
    """A run of so many steps; the requests that the server got."""
    tools = dialect.tools(SCREEN, FULL)
    history = History(dialect, system_text(dialect, SCREEN, FULL), "Wait.", **how)
    with ModelServer([numbered(step, number) for number in range(steps)]) as server:
        model = make_model(api, Endpoint(base(api, server), "scripted"))
        for number in range(steps):
            history.add_picture(picture(number))
            reply = await model.complete(history.messages(), tools)
            parsed = dialect.parse(reply, SCREEN)
            history.add_reply(reply)
            history.add_outcomes(parsed.call_ids, ["waited"] * len(parsed.actions))
        await model.close()
        return server.requests


def items(request):
    """The request's messages, whatever the API calls them."""
    body = request.body
    found = body.get("messages") or body.get("input")
    return found["messages"] if isinstance(found, dict) else found


def without_marks(request):
    """Messages without cache marks, which are no part of what the model reads."""
    return json.loads(
        json.dumps(items(request)).replace(', "cache_control": {"type": "ephemeral"}', "")
    )


@pytest.mark.parametrize(("api", "dialect", "step"), PAIRS, ids=IDS)
async def test_exactly_so_many_pictures_in_each_request(api, dialect, step):
    requests = await run(api, dialect, step, steps=8, pictures=3)
    assert [request.pictures for request in requests] == [1, 2, 3, 3, 3, 3, 3, 3]


@pytest.mark.parametrize(("api", "dialect", "step"), PAIRS, ids=IDS)
async def test_the_beginning_stays_between_prunings(api, dialect, step):
    requests = await run(api, dialect, step, steps=10, pictures=2, prune_every=3)
    assert [request.pictures for request in requests] == [1, 2, 3, 4, 2, 3, 4, 2, 3, 4]
    for number, (before, after) in enumerate(zip(requests, requests[1:], strict=False), 1):
        earlier, later = without_marks(before), without_marks(after)
        same = later[: len(earlier)] == earlier
        assert same == (number not in (4, 7)), number
        assert {k: v for k, v in after.body.items() if k not in ("messages", "input")} == {
            k: v for k, v in before.body.items() if k not in ("messages", "input")
        }


@pytest.mark.parametrize(("api", "dialect", "step"), PAIRS[1:4], ids=IDS[1:4])
async def test_every_result_has_its_call(api, dialect, step):
    for request in await run(api, dialect, step, steps=7, pictures=2):
        text = json.dumps(items(request))
        asked = {f"c{n}" for n in range(7) for k in ("id", "call_id") if _is(items(request), k, n)}
        kinds = ("tool_call_id", "tool_use_id")
        told = {f"c{n}" for n in range(7) for kind in kinds if f'"{kind}": "c{n}"' in text}
        told |= {
            item["call_id"] for item in items(request) if item.get("type") == "computer_call_output"
        }
        assert asked == told


def _is(messages, key, number):
    """Whether a call of this id is there."""
    text = json.dumps(messages)
    if key == "id":
        return f'"id": "c{number}"' in text
    return any(
        item.get("type") == "computer_call" and item[key] == f"c{number}" for item in messages
    )


def test_earlier_steps_become_lines():
    history = History(NanoKvm(), "sys", "Set the DNS.", pictures=1)
    for number in range(3):
        history.add_picture(picture(number))
        history.add_reply(Reply(f"# step {number}\nsleep {number}"))
        history.add_outcomes((), [f"outcome {number}"])
    history.add_hint("Use the keyboard.")
    history.add_picture(picture(3))
    system, first = history.messages()
    assert system.text == "sys"
    assert first.text == (
        "Your task: Set the DNS.\n\n"
        "What was done so far:\n"
        "1. # step 0 sleep 0 => outcome 0\n"
        "2. # step 1 sleep 1 => outcome 1\n"
        "3. # step 2 sleep 2 => outcome 2\n\n"
        "The user says: Use the keyboard."
    )
    assert first.pictures == (picture(3),)


def test_hints_are_never_lost_and_old_steps_are_bounded():
    history = History(NanoKvm(), "sys", "Wait.", pictures=1)
    for number in range(500):
        if number == 5:
            history.add_hint("Never click on Buy.")
        history.add_note("The screen changed its size.")
        history.add_picture(picture(number))
        history.add_reply(Reply("# " + "long " * 1000 + "\nsleep 1"))
        history.add_outcomes((), ["waited"])
    text = history.messages()[1].text
    assert "The user says: Never click on Buy." in text
    assert "steps before are left out" in text
    assert "\n499. " in text
    assert len(text) < 50_000
    assert len(history.messages()) < 5


def test_a_refused_reply_and_its_reason_go_back():
    history = History(NanoKvm(), "sys", "Wait.")
    history.add_picture(picture(0))
    history.add_reply(Reply("x" * 100_000))
    history.add_refusal("There is no command 'x'.")
    roles = [message.role for message in history.messages()]
    assert roles == ["system", "user", "assistant", "user"]
    reply, told = history.messages()[-2:]
    assert len(reply.text) < 5000
    assert told.text == "Nothing of it was carried out. There is no command 'x'."


@pytest.mark.parametrize(
    ("calls", "paired"),
    [
        ([("a", '{"action": "lef_click"}'), ("b", "{}")], True),
        ([("a", '{"action": ')], False),
        ([("a", "[]")], False),
        ([("a", "{}"), ("a", "{}")], False),
    ],
)
def test_refused_calls_are_answered_or_told_as_text(calls, paired):
    history = History(Qwen(as_tools=True), "sys", "Wait.")
    history.add_picture(picture(0))
    made = tuple(ToolCall(call_id, "computer_use", arguments) for call_id, arguments in calls)
    history.add_reply(Reply("I click.", made))
    history.add_refusal("No such action.")
    _, _, reply, *told = history.messages()
    if paired:
        assert [message.tool_call_id for message in told] == [call_id for call_id, _ in calls]
        assert reply.tool_calls == made
    else:
        assert reply.tool_calls == ()
        assert calls[0][1] in reply.text and reply.opaque is None
        assert [message.role for message in told] == ["user"]
    assert "No such action." in told[0].text


@pytest.mark.parametrize("dialect", [Anthropic(), OpenAI()])
def test_a_question_without_a_call_is_answered_in_words(dialect):
    history = History(dialect, "sys", "Wait.")
    reply = Reply("QUESTION: Which?")
    parsed = dialect.parse(reply, SCREEN)
    history.add_reply(reply)
    history.add_outcomes(parsed.call_ids, ["The user says: the left one"])
    history.add_picture(picture(1))
    assert history.messages()[-1].role == "user"
    assert "the left one" in history.messages()[-1].text


def test_an_empty_reply_is_not_sent_back_empty():
    history = History(NanoKvm(), "sys", "Wait.")
    history.add_reply(Reply(""))
    history.add_refusal("Your reply is empty.")
    assert history.messages()[2].text == "(empty)"


def test_secrets_are_taken_out_of_everything():
    secrets = Secrets({"PIN": "hunter2!"})
    history = History(
        Qwen(as_tools=True), "sys hunter2!", "Log in with hunter2!", redact=secrets.redact_all
    )
    history.add_hint("It is hunter2!")
    history.add_note("hunter2!")
    call = ToolCall("a", "computer_use", '{"action": "type", "text": "hunter2!"}')
    history.add_reply(Reply("hunter2!", (call,), "hunter2!", opaque=[{"text": "hunter2!"}]))
    history.add_outcomes(("a",), ["typed hunter2!"])
    history.add_picture(picture(1))
    assert "hunter2!" not in repr(history.messages())
    assert repr(history.messages()).count("{{secret:PIN}}") == 9


def test_the_users_prompt_stands_behind_the_instructions():
    text = system_text(NanoKvm(), SCREEN, FULL, "The computer runs Debian.", ["PIN"])
    assert text.startswith(BUILT_IN.replace(FORMAT, NanoKvm().instructions(SCREEN, FULL)))
    assert text.endswith("The computer runs Debian.")
    assert "{{secret:PIN}}" in text


def test_numbers_below_one():
    with pytest.raises(ConfigError):
        History(NanoKvm(), "", "", pictures=0)
    with pytest.raises(ConfigError):
        History(NanoKvm(), "", "", prune_every=0)
