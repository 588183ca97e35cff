"""What a step's result changes in one request."""

from collections.abc import Iterator, Mapping

from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.messages import RequestDelta
from pagoda.core.plan import RequestResult, StepPlan
from pagoda.core.planning import PlanBuilder
from pagoda.core.request import FinishReason, Request
from pagoda.core.sharing import PrefixesInFlight

# Blocks of a reply go into the prefix cache so many at a time, or when it ends: hashing them one
# by one took a third of the time that a step of 256 requests spent in the scheduler.
_LATE_BLOCKS = 7


class Progress:
    """Moves requests forward: counters, prefix cache, stop conditions."""

    def __init__(
        self,
        kv: KVCacheManager,
        sharing: PrefixesInFlight,
        requests: Mapping[str, Request],
        one_by_one: bool = False,
    ):
        """`one_by_one`: a request's next token is planned once its last one is known."""
        self._one_by_one = one_by_one
        self._kv = kv
        self._sharing = sharing
        self._requests = requests

    def plan(self, req: Request, num_tokens: int, step: PlanBuilder) -> int:
        """Plan a request's next tokens, drafts last; how many, for drafts take states."""
        has_states = self._kv.has_states
        if has_states:
            start, wanted = req.num_computed_tokens, len(req.draft_token_ids)
            states = self._kv.plan_states(req.tables, start, wanted)
            step.plan.states.append(states)
            num_drafts = len(states) - 2
            num_tokens -= wanted - num_drafts
            del req.draft_token_ids[num_drafts:]
        has_drafts = bool(req.draft_token_ids)
        step.add(req, num_tokens)
        if req.generates and req.row not in step.plan.unsampled:
            req.sits_out |= self._one_by_one
            if not (has_states or has_drafts or req.sits_out):
                req.plan_in_bulk()
        return num_tokens

    def apply(
        self, req: Request, plan: StepPlan, place: int, result: RequestResult
    ) -> RequestDelta | None:
        """Take in one result of a plan. The delta for the client, if there is something to tell;
        its `finish_reason` says whether the request has ended."""
        if result.error is not None:
            return RequestDelta(
                req_id=req.req_id,
                finish_reason=FinishReason.ERROR,
                error=result.error,
                bad_request=result.bad_request,
            )
        end = int(plan.starts[place] + plan.lens[place])
        tokens, reason = result.token_ids, None
        if req.generates and req.row not in plan.unsampled:
            num_drafts = len(plan.drafts.get(req.row, ()))
            if self._one_by_one:
                req.sits_out = False
            if end - num_drafts != len(req.token_ids):
                return None  # It stands on a token that never came, see `_roll_back`.
            if num_drafts:
                req.sits_out = False
                if self._kv.has_states and tokens and plan.step_id > req.reset_step:
                    self._kv.keep_state(req.tables, end - num_drafts, len(tokens) - 1)
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
        if end >= req.tables.next_advance and plan.step_id > req.reset_step:
            self._advance(req, min(end, len(req.token_ids)))
        in_bulk = not (self._kv.has_states or self._one_by_one)
        if tokens and req.is_running and plan.step_id > req.reset_step and in_bulk:
            self._commit_in_bulk(req)
        if not tokens and reason is None and result.prompt_logprobs is None:
            return None
        return _delta(req, result, tokens, reason)

    def pass_bulk(self, req: Request, num_computed: int) -> None:
        """Do what is due once a stream has computed so many tokens, up to which its results were
        taken in with all others'."""
        self._advance(req, num_computed)
        self._commit_in_bulk(req)

    def publish(self, req: Request) -> None:
        """Have what a request has computed in the prefix cache, before it gives its blocks up."""
        if req.commits_in_bulk and len(req.token_ids) > req.tables.next_advance:
            self._advance(req, len(req.token_ids) - 1)

    def of_prompts(self, plan: StepPlan) -> Iterator[RequestDelta]:
        """How far prompts are after a committed plan that did not end them."""
        ends = (plan.starts + plan.lens).tolist()
        for row, req_id, end in zip(plan.rows.tolist(), plan.req_ids, ends, strict=True):
            req = self._requests.get(req_id)
            if row in plan.unsampled and req is not None and req.generates and req.is_running:
                done = min(end, req.prompt_len)
                yield RequestDelta(req_id=req_id, prompt_progress=(done, req.num_cached_tokens))

    def _commit_in_bulk(self, req: Request) -> None:
        until = req.tables.next_advance
        if not self._kv.has_windows:
            until += _LATE_BLOCKS * self._kv.block_size
        req.commit_in_bulk(min(until, req.max_tokens_total - 1))

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
        delta.cached_tiers = req.cached_tiers
        delta.queue_seconds = req.queue_seconds
    if reason is not None:
        delta.finish_reason = reason
        delta.num_preemptions = req.num_preemptions
        delta.embedding = result.embedding
        if tokens and reason is FinishReason.STOP and tokens[-1] not in req.eos_ids:
            delta.stop_reason = tokens[-1]
    return delta
