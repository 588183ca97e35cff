"""Which replica a router chooses."""

from pagoda.core import routing
from pagoda.core.messages import AddRequest
from pagoda.core.routing import ReplicaLoad, make_router

EMPTY = ReplicaLoad(0, 0, 8, 4096)


def prompt(token: int, **fields: str) -> AddRequest:
    return AddRequest(req_id="a", prompt_token_ids=[token] * 160, **fields)


def test_a_salt_and_an_adapter_make_another_prefix():
    router = make_router("prefix-aware", 16)
    busy = EMPTY._replace(requests=1)
    assert router.choose(prompt(1), [busy, EMPTY]) == 1
    assert router.choose(prompt(1), [EMPTY, busy]) == 1
    assert router.choose(prompt(1, cache_salt="s"), [EMPTY, busy]) == 0
    assert router.choose(prompt(1, adapter="d"), [EMPTY, busy]) == 0


def test_no_more_is_remembered_than_a_cache_holds():
    router = make_router("prefix-aware", 16)
    small = EMPTY._replace(kv_tokens=160)
    assert router.choose(prompt(1), [small._replace(requests=1), small]) == 1
    assert router.choose(prompt(2), [small._replace(requests=1), small]) == 1
    assert router.choose(prompt(2), [small, small._replace(requests=1)]) == 1
    assert router.choose(prompt(1), [small, small._replace(requests=1)]) == 0


def test_a_session_stays_where_it_was_unless_others_are_there():
    router = make_router("prefix-aware", 16)
    busy = [EMPTY._replace(requests=count) for count in range(8)]
    assert router.choose(prompt(1, session="s"), [busy[1], EMPTY]) == 1
    assert router.choose(prompt(2), [EMPTY, EMPTY]) == 0
    assert router.choose(prompt(3, session="s"), [EMPTY, busy[3]]) == 1
    assert router.choose(prompt(4, session="other"), [EMPTY, busy[3]]) == 0
    assert router.choose(prompt(5), [EMPTY, busy[3]]) == 0
    # Too many run there: it moves, and stays where it came to.
    assert router.choose(prompt(6, session="s"), [EMPTY, busy[5]]) == 0
    assert router.choose(prompt(7, session="s"), [busy[3], EMPTY]) == 0


def test_no_session_keeps_a_request_at_an_engine_that_is_full_or_gone():
    router = make_router("prefix-aware", 16)
    assert router.choose(prompt(1, session="s"), [EMPTY, EMPTY]) == 0
    for away in (EMPTY._replace(requests=8), EMPTY._replace(prompt_tokens=4096)):
        assert router.choose(prompt(1, session="s"), [away, EMPTY._replace(requests=7)]) == 1
        assert router.choose(prompt(1, session="s"), [EMPTY, away]) == 0


def test_few_sessions_are_remembered(monkeypatch):
    monkeypatch.setattr(routing, "_MOST_SESSIONS", 2)
    router = make_router("prefix-aware", 16)
    busy = EMPTY._replace(requests=1)
    for token, session in enumerate("abac"):
        assert router.choose(prompt(token, session=session), [busy, EMPTY]) == 1
    assert router.choose(prompt(10, session="a"), [EMPTY, busy]) == 1
    assert router.choose(prompt(11, session="b"), [EMPTY, busy]) == 0
