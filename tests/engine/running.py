"""Requests through an engine in this process, step by step."""

from collections.abc import Sequence

from pagoda.core.messages import AddRequest, RequestDelta, TokenLogprobs, is_progress
from pagoda.core.sampling import SamplingParams
from pagoda.engine.core import EngineCore
from tests.models.tiny import random_ids


def run(core: EngineCore, *requests: AddRequest) -> dict[str, list[RequestDelta]]:
    """Until all have ended: the deltas of each, but how far prompts are."""
    for req in requests:
        core.handle(req)
    deltas: dict[str, list[RequestDelta]] = {req.req_id: [] for req in requests}
    while core.has_work():
        for delta in core.step():
            if not is_progress(delta):
                deltas[delta.req_id].append(delta)
        core.scheduler.check_integrity()
    return deltas


def replies(
    core: EngineCore, sampling: Sequence[SamplingParams], lengths: Sequence[int]
) -> dict[str, tuple[list[int], list[TokenLogprobs]]]:
    """Tokens and logprobs of several requests at once, with random prompts of these lengths."""
    asked = [
        AddRequest(req_id=f"r{i}", prompt_token_ids=random_ids(length, seed=i), sampling=params)
        for i, (length, params) in enumerate(zip(lengths, sampling, strict=True))
    ]
    said = {}
    for req_id, deltas in run(core, *asked).items():
        assert all(delta.error is None for delta in deltas)
        said[req_id] = (
            [token for delta in deltas for token in delta.token_ids],
            [entry for delta in deltas for entry in delta.logprobs or []],
        )
    return said


def tokens(deltas: list[RequestDelta]) -> list[int]:
    """Of a request that ran to its length."""
    assert deltas[-1].finish_reason == "length", deltas[-1]
    return [token for delta in deltas for token in delta.token_ids]
