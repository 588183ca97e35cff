"""Which replica a router chooses."""

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
