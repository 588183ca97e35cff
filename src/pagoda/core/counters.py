"""What the scheduler counts, for metrics and logs."""

import time
from bisect import bisect_left

from pagoda.core.messages import STEP_TOKENS, EngineStats, RequestDelta
from pagoda.core.plan import RequestResult
from pagoda.core.request import Request


def new_counters(num_blocks: int) -> EngineStats:
    return EngineStats(blocks_total=num_blocks, steps_by_tokens=[0] * (len(STEP_TOKENS) + 1))


def count_step(stats: EngineStats, num_requests: int, num_tokens: int, num_steps: int = 1) -> None:
    """Count a step of so many requests and tokens, or several that are alike."""
    stats.num_steps += num_steps
    stats.step_requests += num_steps * num_requests
    stats.computed_tokens += num_steps * num_tokens
    stats.steps_by_tokens[bisect_left(STEP_TOKENS, num_tokens)] += num_steps


def count_start(stats: EngineStats, req: Request, hit_tokens: int) -> None:
    """A request runs for the first time."""
    req.num_cached_tokens = req.num_prompt_counted = hit_tokens
    if req.message.arrival_time:
        req.queue_seconds = max(0.0, time.time() - req.message.arrival_time)
    if req.reads_prefix_cache:
        stats.prefix_queries += req.prompt_len
        stats.prefix_hits += hit_tokens


def count_prompt(stats: EngineStats, req: Request, end: int) -> None:
    """A request has computed its tokens up to `end`; those of its prompt count once."""
    done = min(end, req.prompt_len)
    if done > req.num_prompt_counted:
        stats.prompt_tokens += done - req.num_prompt_counted
        req.num_prompt_counted = done


def count_drafts(
    stats: EngineStats,
    req: Request,
    num_drafts: int,
    result: RequestResult,
    delta: RequestDelta | None,
) -> None:
    """What came of a request's guesses in one step: those that it kept, which are none behind a
    stop token, and not the token behind them all."""
    kept = 0 if delta is None else len(delta.token_ids)
    num_accepted = max(0, min(kept, len(result.token_ids) - 1))
    req.num_draft_tokens += num_drafts
    req.num_accepted_tokens += num_accepted
    by_place = stats.spec_accepted_per_position
    by_place += [0] * (num_drafts - len(by_place))
    for place in range(num_accepted):
        by_place[place] += 1
    stats.spec_drafts += 1
    stats.spec_draft_tokens += num_drafts
    stats.spec_accepted_tokens += num_accepted
