"""What the scheduler may do in a step, and which requests it can serve at all."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.base.errors import ConfigError, ContextLengthError, RequestError
from pagoda.base.units import format_bytes
from pagoda.core.kvcache.block_hash import MAX_TOKEN_ID
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.messages import POOLING_TASKS, AddRequest, MediaItem
from pagoda.core.request import Request


@dataclass(frozen=True)
class SchedulerLimits:
    max_num_reqs: int
    """Requests that run at once; also the runner's rows."""
    max_num_batched_tokens: int
    """Tokens in one step."""
    max_model_len: int
    policy: str = "fcfs"
    """`fcfs`, or `priority`: lower `AddRequest.priority` first, then arrival."""
    long_prefill_token_threshold: int = 0
    """Most tokens one request takes in a step; 0 is no limit."""
    enable_chunked_prefill: bool = True
    """False starts a prompt only when it fits the step's budget whole. One that is larger than
    the whole budget is split all the same."""
    max_step_seconds: float = math.inf
    """While requests generate, prompts are split so that a step is predicted to take no longer,"""
    max_step_growth: float = math.inf
    """and no more than so many times what it would take without them. With either, a step of
    prompts alone ends early too, for who comes meanwhile."""

    num_stages: int = 1
    """More than one: stages of a pipeline, each of which computes a step of other requests. Who
    waits for a token sits out, and streams are dealt out to so many steps."""

    whole_media: bool = False
    """All of a picture's tokens that are not cached are computed in one step."""

    def __post_init__(self) -> None:
        if min(self.max_num_reqs, self.max_num_batched_tokens, self.max_model_len) < 1:
            raise ConfigError(
                f"A step of {self.max_num_batched_tokens} tokens for {self.max_num_reqs} requests "
                f"and a context of {self.max_model_len} serves nobody; all three must be at "
                "least 1."
            )
        if self.policy not in ("fcfs", "priority"):
            raise ConfigError(
                f"The scheduling policy {self.policy!r} is not known; use fcfs or priority."
            )

    def chunk(self, num_missing: int, budget: int) -> int:
        """How many of a request's missing tokens a step takes."""
        if self.long_prefill_token_threshold > 0 and self.enable_chunked_prefill:
            budget = min(budget, self.long_prefill_token_threshold)
        return min(num_missing, budget)

    def whole(self, media: Sequence[MediaItem], start: int, num_tokens: int, most: int) -> int:
        """So many tokens behind `start`, or with `whole_media` others that split no picture: fewer,
        or up to `most`; 0 where that is not enough."""
        end = start + num_tokens
        if not self.whole_media or not num_tokens:
            return num_tokens
        for item in media:
            last = item.start + item.length
            if item.start < end < last:
                rest = last - start
                return item.start - start if item.start > start else rest if rest <= most else 0
        return num_tokens


def check_message(message: AddRequest, limits: SchedulerLimits) -> None:
    """RequestError for a message that no engine of these limits can serve."""
    prompt = message.prompt_token_ids
    if message.kind not in ("generate", "pool"):
        raise RequestError(
            f"kind must be 'generate' or 'pool', got {message.kind!r}.", param="kind"
        )
    if message.pooling is not None and message.pooling.task not in POOLING_TASKS:
        raise RequestError(
            f"task must be one of {', '.join(POOLING_TASKS)}, got {message.pooling.task!r}.",
            param="task",
        )
    if message.pooling is not None and message.pooling.task == "align":
        alignment, heard = message.pooling.alignment, sum(item.length for item in message.media)
        if alignment is None or alignment.skipped >= len(prompt) - heard:
            raise RequestError("A text to align needs an alignment, and tokens of its own.")
    longest = max((item.length for item in message.media), default=0)
    if limits.whole_media and longest > limits.max_num_batched_tokens:
        raise RequestError(
            f"A picture has {longest} tokens, and a step no more than "
            f"{limits.max_num_batched_tokens}, which this model reads it in. Lower "
            "--image-max-tokens or raise --max-num-batched-tokens."
        )
    if not prompt:
        raise RequestError("The prompt is empty; send at least one token.", param="prompt")
    if min(prompt) < 0 or max(prompt) > MAX_TOKEN_ID:
        raise RequestError(
            f"Token ids must be between 0 and {MAX_TOKEN_ID}; the prompt has {min(prompt)} to "
            f"{max(prompt)}.", param="prompt",
        )  # fmt: skip
    generates = message.kind == "generate" and message.sampling.max_tokens != 0
    if len(prompt) + int(generates) > limits.max_model_len:
        raise ContextLengthError(
            f"This model's maximum context length is {limits.max_model_len} tokens, but the prompt "
            f"has {len(prompt)}" + (" and needs room for one more" if generates else "") + ". "
            "Shorten the prompt.", param="prompt",
        )  # fmt: skip


def check_capacity(req: Request, limits: SchedulerLimits, kv: KVCacheManager) -> None:
    """RequestError for a request that would not fit if it ran alone."""
    chunk = limits.max_num_batched_tokens
    if not kv.fits_alone(req.compute_limit, chunk):
        raise RequestError(
            f"The request needs {format_bytes(kv.bytes_required(req.compute_limit, chunk))} of KV "
            f"cache ({req.prompt_len} prompt tokens and up to "
            f"{req.max_tokens_total - req.prompt_len} generated ones), but there are "
            f"{format_bytes(kv.total_bytes)}. Lower max_tokens or shorten the prompt, or give the "
            "KV cache more memory.", param="max_tokens",
        )  # fmt: skip
