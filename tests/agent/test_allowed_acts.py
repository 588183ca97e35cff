"""Kinds of acts beside lines that a person allows for a whole task."""

import pytest

from pagoda_agent.consent.policy import Category, Decision, Level, Policy, decisions
from pagoda_agent.input.actions import Click, Key, Point, Type
from pagoda_agent.input.keys import chord

AT = Point(0.5, 0.5)
CLICK, CLOSES = Click(AT), Key(chord("alt+F4"))


def asks_about(*kinds: Category) -> Policy:
    return Policy({**decisions(), **dict.fromkeys(kinds, Decision.CONFIRM)})


def allowed(policy: Policy, *args) -> Policy:
    """The same policy, once a person allowed for the task what was asked about."""
    offer = policy.judge(*args).offer
    assert offer is not None
    policy.allow(offer)
    assert policy.judge(*args).decision is Decision.ALLOW
    return policy


def test_clicks_by_the_model_s_own_words() -> None:
    policy = Policy()
    assert str(policy.judge(CLICK, "I send the mail").offer.reason) == (
        "\"Allow for this task\" lets every click pass that is to 'send' by the model's own words, "
        "and no other one, until the task ends."
    )
    allowed(policy, CLICK, "I send the mail")
    assert policy.judge(Click(Point(0.1, 0.1)), "Send it, too").decision is Decision.ALLOW
    for thought in (
        "I delete the mail",
        "I pay",
        "Sending it",
        "I send it and pay",
        "Send, delete",
    ):
        assert policy.judge(CLICK, thought).decision is Decision.CONFIRM
    policy.interrupted()
    assert policy.judge(CLICK, "I send it").decision is Decision.ALLOW, "until the task ends"
    assert Policy().judge(CLICK, "I send it").decision is Decision.CONFIRM, "not in the next"


@pytest.mark.parametrize(
    "thought",
    ["I pay now", "Checkout", "I place the order", "format it", "付款", "I send it and delete it"],
)
def test_what_costs_is_allowed_once_only(thought: str) -> None:
    judged = Policy().judge(CLICK, thought)
    assert judged.decision is Decision.CONFIRM and judged.offer is None


def test_addresses_of_one_host() -> None:
    policy = allowed(Policy(allowed_hosts=("good.test",)), Type("https://other.test/a"))
    assert policy.judge(Type("http://other.test/b")).decision is Decision.ALLOW
    for text in (
        "https://evil.test",
        "https://x.other.test",
        "https://other.test https://evil.test",
    ):
        assert policy.judge(Type(text)).decision is Decision.CONFIRM


def test_keys_that_close() -> None:
    policy = allowed(asks_about(Category.CLOSE), CLOSES)
    assert policy.judge(Key(chord("ctrl+w"))).decision is Decision.ALLOW
    assert policy.judge(Key(chord("ctrl+alt+Delete"))).decision is Decision.CONFIRM


def test_every_input_of_a_strict_task() -> None:
    policy = Policy(decisions(Level.STRICT))
    assert policy.judge(CLICK, "I send it").offer is None, "two kinds at once are asked about"
    allowed(policy, CLICK)
    assert policy.judge(Type("hello")).decision is Decision.ALLOW
    for action, thought in ((CLICK, "I send it"), (CLOSES, ""), (Type("rm -rf x\n"), "")):
        assert policy.judge(action, thought).decision is Decision.CONFIRM
    assert "'send'" in str(policy.judge(CLICK, "I send it").offer.reason)
    assert policy.judge(Type("rm -rf x\n")).offer is None


@pytest.mark.parametrize("kind", [Category.COMMIT, Category.CLOSE])
def test_what_the_settings_refuse_stays_refused(kind: Category) -> None:
    action, thought = (CLICK, "I send it") if kind is Category.COMMIT else (CLOSES, "")
    policy = allowed(asks_about(kind), action, thought)
    policy.decisions = {**policy.decisions, kind: Decision.DENY}
    assert policy.judge(action, thought).decision is Decision.DENY
