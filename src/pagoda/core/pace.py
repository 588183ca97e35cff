"""How much of its prompts a step takes: as many tokens as it may, at the pace of its streams."""

import math
from collections.abc import Iterable

from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.limits import SchedulerLimits
from pagoda.core.request import Request
from pagoda.core.step_time import StepCost, StepSize, StepTimes

# The pace of fewer streams is that of so many. One or two alone run so fast that keeping a
# prompt from them would cost every reply throughput and spare nobody a wait that he notices.
_FEWEST_STREAMS = 8
# A step takes so many tokens of a prompt whatever they take, so that prompts never starve. Where
# each token costs the same this adds half to a step of eight streams; where a prompt's context
# makes its tokens cost four times as much, as measured at 4,000 tokens, it trebles one.
LEAST_PROMPT_TOKENS = 4


class StepRoom:
    """What is left of one step for prompts, while it is planned.

    Without streams that is the budget of tokens. With streams the step's predicted time counts
    too: all of them wait for it. Predictions are made only once a prompt asks.
    """

    def __init__(self, limits: SchedulerLimits, times: StepTimes, running: Iterable[Request]):
        self.tokens = limits.max_num_batched_tokens
        self._limits = limits
        self._times = times
        self._running = running
        self._size: StepSize | None = None
        """Of the step so far, all streams included, once a prompt has asked."""
        self._cost: StepCost | None = None
        """None where the time does not count."""
        self._seconds = math.inf
        self._took_prompt = False

    def prompt_tokens(self, start: int, num_missing: int, reserved: int = 0) -> int:
        """How many of a prompt's missing tokens to compute behind `start`; `reserved` tokens of
        the budget are for others. 0 when it should wait for the next step."""
        tokens = self._limits.chunk(num_missing, max(0, self.tokens - reserved))
        if not self._limits.enable_chunked_prefill or tokens <= 0:
            return tokens
        if self._size is None:
            self._measure_streams()
        if self._cost is None or self._size is None:
            return tokens
        fitting = self._cost.most_tokens(self._size, start, self._seconds)
        if fitting < LEAST_PROMPT_TOKENS:
            fitting = 0 if self._took_prompt else LEAST_PROMPT_TOKENS
        return int(min(tokens, fitting))

    def chunk(self, req: Request, missing: int, reserved: int, kv: KVCacheManager) -> int:
        """Tokens to compute of a running request that misses several or has drafts; trims these.
        `reserved` as in `prompt_tokens`."""
        num_tokens = 1
        if missing > 1:
            start = req.num_computed_tokens
            num_tokens = self.prompt_tokens(start, missing, reserved)
            if self._limits.enable_chunked_prefill:
                num_tokens = req.num_ready(start, num_tokens)
            num_tokens = kv.until_kept(req.tables, start, num_tokens)
            num_tokens = self._limits.whole(req.message.media, start, num_tokens, self.tokens)
        if req.draft_token_ids:
            most = self.tokens - reserved - num_tokens
            most = min(most, req.compute_limit - req.num_expected_tokens)
            if num_tokens < missing or req.num_placeholders:
                most = 0  # They would not follow the last token computed, or guess a known one.
            del req.draft_token_ids[max(0, most) :]
            end = req.num_computed_tokens + num_tokens + len(req.draft_token_ids)
            if not kv.has_room(req.tables, end):
                req.draft_token_ids = []  # Nobody is preempted for a guess.
        return num_tokens + len(req.draft_token_ids)

    def take(self, num_tokens: int) -> None:
        """Count the tokens of a stream."""
        self.tokens -= num_tokens

    def take_prompt(self, start: int, num_tokens: int) -> None:
        self.tokens -= num_tokens
        self._took_prompt = True
        if self._size is not None:
            self._size = self._size.plus(start, num_tokens)

    def _measure_streams(self) -> None:
        limits = self._limits
        num_streams, size = 0, StepSize()
        for req in self._running:
            if req.is_stream:
                num_streams += 1
                size = size.plus(req.num_computed_tokens, 1)
        self._size = size
        if not num_streams or math.isinf(min(limits.max_step_seconds, limits.max_step_growth)):
            return
        if self._times.wants_decode():
            self._took_prompt, self._seconds = True, 0.0  # No prompt in this step.
        # While nothing is known: as if nothing were shared.
        self._cost = self._times.cost() or StepCost(per_token=1.0)
        alone = self._times.cost(decodes=True) or self._cost
        scale = max(1.0, _FEWEST_STREAMS / num_streams)
        usual = alone.seconds(StepSize(size.tokens * scale, size.pairs * scale))
        bound = min(limits.max_step_seconds, limits.max_step_growth * usual)
        self._seconds = min(self._seconds, bound)
