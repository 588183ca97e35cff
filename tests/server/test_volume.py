"""What a body holds is counted before anything is made of it, and others get their turn."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.server.bodies.body import MAX_FIELDS
from pagoda.server.bodies.volume import (
    MAX_CONTAINERS,
    MAX_ITEMS,
    MAX_MEMBERS,
    MAX_STRINGS,
    Volume,
    check_volume,
    count_volume,
)
from pagoda.server.errors import ApiError
from tests.server.conftest import RunningServer
from tests.server.test_errors import error_of

TEXTS = st.text(st.sampled_from('a"\\,:[]{}\n\x00é'))
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=20,
)


def walked(value: Any) -> Iterator[Volume]:
    """The same from the decoded value."""
    if isinstance(value, str):
        yield Volume(strings=1)
    if not isinstance(value, list | dict):
        return
    members = len(value) if isinstance(value, dict) else 0
    yield Volume(max(0, len(value) - 1), 1, members, members)
    for inner in value.values() if isinstance(value, dict) else value:
        yield from walked(inner)


@given(VALUES, st.integers(1, 9), st.booleans())
def test_counts_are_those_of_the_decoded_value(value: Any, size: int, ascii_only: bool) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    parts = list(walked(value))
    assert asyncio.run(count_volume(raw, size)) == Volume(
        *(sum(getattr(part, name) for part in parts) for name in Volume.__annotations__)
    )


async def test_others_get_their_turn_while_a_body_is_counted() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(turn())
    await check_volume(b'{"a":["' + b'\\",' * 6_000_000 + b'"]}')
    assert turns >= 16_000_000 >> 20
    task.cancel()


def body(inner: bytes) -> bytes:
    return b'{"prompt":"a","messages":[{"role":"user","content":"a"}],' + inner + b"}"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize(
    ("inner", "most"),
    [
        (b'"stop_token_ids":[' + b"1," * MAX_ITEMS + b"1]", MAX_ITEMS),
        (b'"tools":[' + b"{}," * MAX_CONTAINERS + b"{}]", MAX_CONTAINERS),
        (b'"x":{"":0' + b',"a":1' * MAX_MEMBERS + b"}", MAX_MEMBERS),
        (b'"stop":[""' + b',""' * MAX_STRINGS + b"]", MAX_STRINGS),
        (b",".join(b'"k%d":1' % number for number in range(MAX_FIELDS)), MAX_FIELDS),
    ],
    ids=["ids", "objects", "members", "strings", "fields"],
)
def test_bodies_that_hold_too_much_are_refused(
    shared: RunningServer, path: str, inner: bytes, most: int
) -> None:
    headers = {"content-type": "application/json"}
    error = error_of(shared.http.post(path, content=body(inner), headers=headers))
    assert f"more than {most} " in error["message"]


def test_punctuation_in_a_text_is_no_value(shared: RunningServer) -> None:
    text = '[{,:"\\' * (MAX_ITEMS // 4)
    reply = shared.post("/v1/completions", prompt=text, max_tokens=1)
    assert "maximum context length" in error_of(reply)["message"]


def test_a_million_token_ids_are_a_prompt(shared: RunningServer) -> None:
    reply = shared.post("/v1/completions", prompt=[1] * 1_000_000, max_tokens=1)
    assert "contains 1000000 input tokens" in error_of(reply)["message"]


async def test_a_body_is_counted_at_its_bounds() -> None:
    await check_volume(b"[" + b"1," * MAX_ITEMS + b"1]")
    with pytest.raises(ApiError):
        await check_volume(b"[" + b"1," * (MAX_ITEMS + 1) + b"1]")


def test_a_reply_lists_no_more_than_a_body_may(shared: RunningServer) -> None:
    text = "a" * (MAX_ITEMS + 1)
    message = error_of(shared.post("/tokenize", prompt=text))["message"]
    assert f"at most {MAX_ITEMS}" in message
    assert shared.post("/tokenize", prompt="abc").json()["count"] == 3
