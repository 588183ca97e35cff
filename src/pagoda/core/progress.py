"""What a step's result changes in one request."""

from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.messages import RequestDelta
from pagoda.core.plan import NO_STATES, PlannedRequest, RequestResult, StepPlan
from pagoda.core.request import FinishReason, Request
from pagoda.core.sharing import PrefixesInFlight

# Blocks of a reply go into the prefix cache so many at a time, or when it ends: hashing them one
# by one took a third of the time that a step of 256 requests spent in the scheduler.
_LATE_BLOCKS = 7


class Progress:
    """Moves requests forward: counters, prefix cache, stop conditions."""

    def __init__(self, kv: KVCacheManager, sharing: PrefixesInFlight):
        self._kv = kv
        self._sharing = sharing

    def plan(self, req: Request, num_tokens: int, blocks: list[list[int]]) -> PlannedRequest:
        """Plan a request's next tokens, drafts last, and count them as computed and expected."""
        start = req.num_computed_tokens
        end = start + num_tokens
        drafts = req.draft_token_ids
        last = end - len(drafts) == req.num_expected_tokens
        req.num_computed_tokens = end
        if drafts:
            req.draft_token_ids = []
            req.drafts_in_flight = True
            req.steady_until = 0
        if last and req.generates:
            req.num_expected_tokens = end + 1
            if not self._kv.has_states and not drafts:
                req.steady_until = min(req.tables.capacity, req.compute_limit)
        return PlannedRequest(
            req_id=req.req_id,
            num_computed_tokens=start,
            num_tokens=num_tokens,
            new_block_ids=blocks,
            states=self._kv.plan_states(req.tables, start) if self._kv.has_states else NO_STATES,
            draft_token_ids=drafts,
            samples=last and (req.generates or req.pools),
        )

    def apply(
        self, req: Request, planned: PlannedRequest, result: RequestResult, step_id: int
    ) -> RequestDelta | None:
        """Take in one result. The delta for the client, if there is something to tell; its
        `finish_reason` says whether the request has ended."""
        if result.error is not None:
            return RequestDelta(
                req_id=req.req_id,
                finish_reason=FinishReason.ERROR,
                error=result.error,
                bad_request=result.bad_request,
            )
        end = planned.num_computed_tokens + planned.num_tokens
        tokens, reason = result.token_ids, None
        if planned.samples and req.generates:
            num_drafts = len(planned.draft_token_ids)
            if end - num_drafts != len(req.token_ids):
                return None  # It stands on a token that never came, see `_roll_back`.
            if num_drafts:
                req.drafts_in_flight = False
            if req.draft_token_ids:
                req.draft_token_ids = []
            count, reason = req.append(tokens)
            missing = 1 + num_drafts - len(tokens)
            if missing:
                end -= missing
                _roll_back(req)
            tokens = tokens[:count] if count < len(tokens) else tokens
        elif end >= req.prompt_len and not req.generates:
            reason = FinishReason.STOP if req.pools else FinishReason.LENGTH
        if end >= req.tables.next_advance and step_id > req.reset_step:
            self._advance(req, min(end, len(req.token_ids)))
        if tokens and req.is_running and step_id > req.reset_step and not self._kv.has_states:
            self._be_quiet(req)
        if not tokens and reason is None and result.prompt_logprobs is None:
            return None
        return _delta(req, result, tokens, reason)

    def take_quietly(
        self, requests: list[Request], plan: StepPlan, tokens: list[int]
    ) -> tuple[list[RequestDelta], list[int]]:
        """Append a token to each of a plan's requests where nothing follows from it: the deltas,
        and which requests are left to `apply`."""
        deltas, others, after = [], [], plan.ahead + 1
        for i, (req, start, token) in enumerate(zip(requests, plan.starts, tokens, strict=True)):
            known = req.token_ids
            if start + after == len(known) < req.quiet_until and token not in req.stop_ids:
                known.append(token)
                deltas.append(RequestDelta(req_id=req.req_id, token_ids=[token]))
            else:
                others.append(i)
        return deltas, others

    def publish(self, req: Request) -> None:
        """Have what a request has computed in the prefix cache, before it gives its blocks up."""
        if req.quiet_until and len(req.token_ids) > req.tables.next_advance:
            self._advance(req, len(req.token_ids) - 1)

    def _be_quiet(self, req: Request) -> None:
        until = req.tables.next_advance
        if not self._kv.has_windows:
            until += _LATE_BLOCKS * self._kv.block_size
        req.quiet_until = min(until, req.max_tokens_total - 1)

    def _advance(self, req: Request, num_computed: int) -> None:
        hashes: list[bytes] = []
        before = req.tables.num_cached
        if req.block_hashes is not None:
            num_blocks = num_computed // self._kv.block_size
            hashes = req.block_hashes.extend(req.token_ids, num_blocks)
        self._kv.advance(req.tables, hashes, num_computed)
        done = hashes[before : req.tables.num_cached]
        if self._kv.has_states:
            # A state is published once the step that goes on from it is planned.
            done = self._kv.hashes_with_states(req.tables, hashes, num_computed - 1)
        self._sharing.release(req, done)


def _roll_back(req: Request) -> None:
    """Fewer tokens came than were planned: drafts were rejected, or none came at all.

    A plan with drafts is the last one in flight. Without drafts another may be, and stands on
    the token that did not come: its promise is forgotten, and its result known by its position.
    """
    req.num_expected_tokens = len(req.token_ids)
    req.num_computed_tokens = min(req.num_computed_tokens, len(req.token_ids) - 1)


def _delta(
    req: Request, result: RequestResult, tokens: list[int], reason: FinishReason | None
) -> RequestDelta:
    delta = RequestDelta(req_id=req.req_id, token_ids=tokens)
    if result.logprobs is not None:
        delta.logprobs = result.logprobs[: len(tokens)]
    if result.prompt_logprobs is not None:
        delta.prompt_logprobs = result.prompt_logprobs
        req.num_prompt_logprobs += len(result.prompt_logprobs)
    if not req.delta_sent:
        req.delta_sent = True
        delta.num_cached_tokens = req.num_cached_tokens
        delta.prefix_miss = req.prefix_miss
        delta.queue_seconds = req.queue_seconds
    if reason is not None:
        delta.finish_reason = reason
        delta.num_preemptions = req.num_preemptions
        delta.embedding = result.embedding
        if tokens and reason is FinishReason.STOP and tokens[-1] not in req.eos_ids:
            delta.stop_reason = tokens[-1]
    return delta
