"""How many tokens of its prompts a step takes: as many as it may, at the pace of its streams."""

import math

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
# Without streams a step ends for the sake of whoever arrives meanwhile. It is so many times as
# long as what a step costs besides its tokens, and has so many tokens at least: longer ones read a
# prompt hardly faster (docs/development/log.md). Nobody notices a wait of so many seconds.
_STEP_PER_BASE = 8.0
_LEAST_LONE_TOKENS = 32
_LEAST_LONE_SECONDS = 0.02


class PromptRoom:
    """What one step has for prompts, while that is divided among them."""

    def __init__(self, limits: SchedulerLimits, times: StepTimes, streams: StepSize, tokens: int):
        """`streams`: what those that generate take of the step."""
        self.tokens = tokens
        """What is left of the budget."""
        known = times.cost() if limits.enable_chunked_prefill else None
        self.cost = known or StepCost(per_token=1.0)
        """While nothing is known: as if each token cost the same."""
        self.is_timed = limits.enable_chunked_prefill and not math.isinf(
            min(limits.max_step_seconds, limits.max_step_growth)
        )
        self.size = streams
        """The size of the step so far, all streams included."""
        self._limits = limits
        self._seconds = math.inf
        self._least = LEAST_PROMPT_TOKENS
        """Tokens that the first prompt gets whatever they take; none for those behind it."""
        num_streams = streams.tokens
        if not self.is_timed:
            return
        if not num_streams:
            # Steps of like size tell little of what a step costs without any token.
            base = min(self.cost.base, times.shortest)
            self._seconds = max(_LEAST_LONE_SECONDS, _STEP_PER_BASE * base)
            self._least = _LEAST_LONE_TOKENS
            return
        alone = times.cost(decodes=True) or self.cost
        scale = max(1.0, _FEWEST_STREAMS / num_streams)
        usual = alone.seconds(StepSize(self.size.tokens * scale, self.size.pairs * scale))
        self._seconds = min(limits.max_step_seconds, limits.max_step_growth * usual)
        if times.wants_decode():
            self.tokens = 0  # No prompt in this step.

    @property
    def seconds(self) -> float:
        """Predicted, of the step so far."""
        return self.cost.seconds(self.size)

    def most(self, start: int, num_missing: int, seconds: float = math.inf) -> int:
        """How many of a prompt's missing tokens fit behind `start`, until the step takes `seconds`
        at most; 0 when it should wait for the next one."""
        tokens = max(0, self._limits.chunk(num_missing, self.tokens))
        seconds = min(seconds, self._seconds)
        if not tokens or math.isinf(seconds):
            return tokens
        fitting = self.cost.most_tokens(self.size, start, seconds)
        if fitting < min(tokens, max(self._least, LEAST_PROMPT_TOKENS)):
            fitting = self._least
        return int(min(tokens, fitting))

    def take(self, start: int, num_tokens: int) -> None:
        self.tokens -= num_tokens
        self.size = self.size.plus(start, num_tokens)
        self._least = 0


class StepRoom:
    """What is left of one step's budget while it is planned, and what its prompts get of it."""

    def __init__(self, limits: SchedulerLimits, num_running: int):
        self.tokens = limits.max_num_batched_tokens
        self._streams = -(-num_running // limits.num_stages)
        """How many more streams it takes."""
        self.granted: dict[Request, int] | None = None
        """Tokens of each prompt that gets any, once one has asked."""
        self.prompts_left = 0
        """Running ones that are not planned yet, once one has asked."""
        self.unencoded: list[tuple[Request, int]] = []
        """Waiting requests that could start behind so many tokens, had what comes been encoded."""
        self._limits = limits

    def take_stream(self) -> bool:
        """Take a stream in, if it is not another step's, which the stages of a pipeline compute
        meanwhile."""
        self._streams -= 1
        return self._streams >= 0

    def first_chunk(self, req: Request, start: int) -> int:
        """Tokens to compute of a request that starts behind a cached prefix; 0 is not now."""
        missing = req.num_expected_tokens - start
        num_tokens = min(self._granted(req), missing, self.tokens)
        if self._limits.enable_chunked_prefill:
            num_tokens = req.num_ready(start, num_tokens)
        elif num_tokens < min(missing, self._limits.max_num_batched_tokens):
            return 0
        return self._limits.whole(req.message.media, start, num_tokens, self.tokens)

    def chunk(self, req: Request, missing: int, reserved: int, kv: KVCacheManager) -> int:
        """Tokens to compute of a running request that misses several, if any are granted, or has
        drafts; trims these. `reserved` tokens of the budget are for others."""
        num_tokens = 1
        if missing > 1:
            start = req.num_computed_tokens
            num_tokens = min(self._granted(req), self.tokens - reserved)
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

    def _granted(self, req: Request) -> int:
        return 0 if self.granted is None else self.granted.get(req, 0)
