"""Requests through an engine in this process, step by step."""

from pagoda.core.messages import AddRequest, RequestDelta
from pagoda.engine.core import EngineCore


def run(core: EngineCore, *requests: AddRequest) -> dict[str, list[RequestDelta]]:
    """Until all have ended: the deltas of each."""
    for req in requests:
        core.handle(req)
    deltas: dict[str, list[RequestDelta]] = {req.req_id: [] for req in requests}
    while core.has_work():
        for delta in core.step():
            deltas[delta.req_id].append(delta)
        core.scheduler.check_integrity()
    return deltas


def tokens(deltas: list[RequestDelta]) -> list[int]:
    """Of a request that ran to its length."""
    assert deltas[-1].finish_reason == "length", deltas[-1]
    return [token for delta in deltas for token in delta.token_ids]
