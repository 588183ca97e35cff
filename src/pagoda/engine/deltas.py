"""Deltas of one request put together."""

from typing import Any

from pagoda.core.messages import RequestDelta


def merged(older: RequestDelta, newer: RequestDelta) -> RequestDelta:
    """One delta that says what the two say."""
    return RequestDelta(
        req_id=older.req_id,
        token_ids=older.token_ids + newer.token_ids,
        logprobs=_joined(older.logprobs, newer.logprobs),
        prompt_logprobs=_joined(older.prompt_logprobs, newer.prompt_logprobs),
        num_cached_tokens=(
            newer.num_cached_tokens if older.num_cached_tokens is None else older.num_cached_tokens
        ),
        queue_seconds=newer.queue_seconds if older.queue_seconds is None else older.queue_seconds,
        embedding=newer.embedding,
        finish_reason=newer.finish_reason,
        stop_reason=newer.stop_reason,
        error=newer.error,
        bad_request=newer.bad_request,
    )


def _joined(older: list[Any] | None, newer: list[Any] | None) -> list[Any] | None:
    if older is None or newer is None:
        return newer if older is None else older
    return older + newer
