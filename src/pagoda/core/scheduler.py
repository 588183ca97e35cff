"""Which requests compute how many tokens in the next step, and what a step's result changes."""

import time
from bisect import bisect_left

import msgspec

from pagoda.base.errors import RequestError
from pagoda.core.admission import Admission, Refusal, Start, Unencoded
from pagoda.core.kvcache.block_hash import BlockHashes
from pagoda.core.kvcache.manager import KVCacheManager, PrefixHit
from pagoda.core.kvcache.spec import attention_groups
from pagoda.core.limits import SchedulerLimits, check_capacity, check_message
from pagoda.core.messages import STEP_TOKENS, AddRequest, EngineStats, RequestDelta
from pagoda.core.pace import StepRoom
from pagoda.core.plan import (
    ENCODE_AHEAD,
    NewRow,
    PlannedRequest,
    RequestResult,
    StepPlan,
    StepResult,
)
from pagoda.core.progress import Progress
from pagoda.core.queue import RequestQueue
from pagoda.core.request import FinishReason, Request, RequestStatus
from pagoda.core.sharing import PrefixesInFlight
from pagoda.core.step_time import StepTimes, only_decodes, size_of

__all__ = ["Scheduler", "SchedulerLimits"]

_NOTHING = RequestResult(req_id="")
NO_STATES = (0, 0)


class Scheduler:
    """Requests whose computed tokens catch up with their known ones under a budget per step.

    There is no prefill and no decode: a new prompt is far behind, a generating request is one
    token behind. `schedule` never reads the value of a sampled token, so the next plan can be
    made before the last result is in (asynchronous scheduling). Plans are executed and committed
    in the order in which they were made.

    That order is also what makes reuse of blocks safe. Blocks go back to the pool at once when a
    request ends or is preempted, even while a step in flight still writes to them: whoever gets
    them computes in a later step, and writes each position before it is read. The prefix cache
    only ever names blocks that are full and committed, and no step in flight writes to those.
    """

    def __init__(self, limits: SchedulerLimits, kv: KVCacheManager):
        self.limits = limits
        self.kv = kv
        self._requests: dict[str, Request] = {}
        self._running = RequestQueue()
        self._waiting = RequestQueue()
        self._sharing = PrefixesInFlight()
        self._admission = Admission(limits, kv, self._sharing)
        self._progress = Progress(kv, self._sharing)
        self._times = StepTimes()
        self._in_flight: dict[int, list[Request]] = {}
        self._freed: list[str] = []
        self._num_arrived = 0
        self._step_id = 0
        self._stats = EngineStats(
            blocks_total=kv.num_blocks, steps_by_tokens=[0] * (len(STEP_TOKENS) + 1)
        )
        # Most decode steps add no block; runners only read plans, so one object serves all.
        self._no_blocks: list[list[int]] = [[] for _ in attention_groups(kv.groups)]

    def add(self, message: AddRequest) -> None:
        """Queue a request. RequestError if it can never be served, or its id is taken."""
        check_message(message, self.limits)
        if message.req_id in self._requests:
            raise RequestError(
                f"A request with id {message.req_id!r} is being served; use another id.",
                param="request_id",
            )
        hashes = None
        if self.kv.enable_prefix_caching:
            # Of the whole prompt right here, where it delays no step.
            hashes = BlockHashes.of(message, self.kv.block_size)
            prompt = message.prompt_token_ids
            hashes.extend(prompt, len(prompt) // self.kv.block_size)
        self._num_arrived += 1
        priority = message.priority if self.limits.policy == "priority" else 0
        req = Request(
            message,
            (priority, self._num_arrived),
            self.limits.max_model_len,
            self.kv.open(message.req_id),
            hashes,
        )
        check_capacity(req, self.limits, self.kv)
        self._requests[req.req_id] = req
        self._waiting.push(req)

    def abort(self, req_ids: list[str]) -> list[RequestDelta]:
        """End requests now; ids that are unknown (already finished, say) are passed over."""
        deltas = []
        for req_id in req_ids:
            req = self._requests.get(req_id)
            if req is not None:
                self._remove(req)
                deltas.append(RequestDelta(req_id=req_id, finish_reason=FinishReason.ABORT))
        return deltas

    def hold(self, req_id: str, reason: str) -> None:
        """Let a request wait outside the queue, blocking nobody, until `release`.

        For what it cannot run without: a compiled grammar, an adapter, blocks from disk. A
        running request is preempted. Unknown ids are passed over.
        """
        req = self._requests.get(req_id)
        if req is None:
            return
        if req.status is RequestStatus.RUNNING:
            self._running.remove(req)
            self._preempt(req)
        if req.status is RequestStatus.WAITING:
            self._waiting.remove(req)
            req.status = RequestStatus.HELD
        req.holds.add(reason)

    def release(self, req_id: str, reason: str) -> None:
        """Take one reason away; without reasons the request is back at its place in the queue."""
        req = self._requests.get(req_id)
        if req is None or req.status is not RequestStatus.HELD:
            return
        req.holds.discard(reason)
        if not req.holds:
            req.status = RequestStatus.WAITING
            self._waiting.push(req)

    def propose(self, req_id: str, draft_token_ids: list[int]) -> None:
        """Guess what follows a running request's delivered tokens; its next plan verifies it.

        A request with drafts in flight sits out until their result is in, because where it
        stands depends on how many are accepted. Ids that do not run are passed over, and so are
        models with recurrent layers, whose states cannot go back.
        """
        req = self._requests.get(req_id)
        if req is not None and req.is_running and req.generates and not self.kv.has_states:
            req.draft_token_ids = list(draft_token_ids)

    def schedule(self) -> StepPlan | None:
        """The next plan, or None when nothing can run before a result, a release or a request
        arrives. Rows of ended requests are reported in the next plan that computes something."""
        plan = StepPlan(step_id=self._step_id + 1)
        in_flight: list[Request] = []
        room = StepRoom(self.limits, self._times, self._running)
        preempted = self._plan_running(plan, in_flight, room)
        if not (preempted and in_flight):
            self._plan_waiting(plan, in_flight, room)
        if not in_flight and not plan.encode:
            return None
        self._step_id = plan.step_id
        self._in_flight[plan.step_id] = in_flight
        plan.freed, self._freed = self._freed, []
        return plan

    def commit(
        self, plan: StepPlan, result: StepResult, seconds: float | None = None
    ) -> list[RequestDelta]:
        """Take in a plan's result: what clients are to be told.

        `seconds` is what the step took, where that tells of other steps. Results of requests
        that are gone, even if their id is taken again, change nothing.
        """
        results = {entry.req_id: entry for entry in result.results}
        deltas = []
        stats = self._stats
        size = size_of(plan)
        stats.num_steps += 1
        stats.computed_tokens += int(size.tokens)
        stats.steps_by_tokens[bisect_left(STEP_TOKENS, size.tokens)] += 1
        if result.encoded and plan.encode_for in self._requests:
            self._requests[plan.encode_for].encoded.update(result.encoded)
        if seconds is not None and not plan.encode:
            self._times.observe(size, seconds, only_decodes(plan))
        for req, planned in zip(self._in_flight.pop(plan.step_id), plan.requests, strict=True):
            if req.status is RequestStatus.FINISHED:
                continue
            entry = results.get(planned.req_id, _NOTHING)
            delta = self._progress.apply(req, planned, entry, plan.step_id)
            if req.num_prompt_counted < req.prompt_len:
                self._count_prompt(req, planned)
            if self.kv.has_states and req.is_running and _went_back(req, planned):
                self._running.remove(req)
                self._preempt(req)
            if delta is None:
                continue
            stats.generation_tokens += len(delta.token_ids)
            if delta.finish_reason is not None:
                self._remove(req)
            deltas.append(delta)
        return deltas

    def has_work(self) -> bool:
        """Whether a request runs or wants to; held requests do not count."""
        return bool(len(self._running) or len(self._waiting))

    @property
    def num_requests(self) -> int:
        """Requests that have not ended, held ones among them."""
        return len(self._requests)

    def stats(self) -> EngineStats:
        """A snapshot; `step_seconds` is the engine's to fill in."""
        return msgspec.structs.replace(
            self._stats,
            num_running=len(self._running),
            num_waiting=len(self._requests) - len(self._running),
            num_held=len(self._requests) - len(self._running) - len(self._waiting),
            steps_by_tokens=list(self._stats.steps_by_tokens),
            blocks_free=self.kv.num_free_blocks,
        )

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes that no request uses; True when none are left."""
        return self.kv.reset_prefix_cache()

    def check_integrity(self) -> None:
        """RuntimeError when blocks, queues and requests do not add up."""
        self.kv.check_integrity()
        self._sharing.check()
        running, waiting = list(self._running), list(self._waiting)
        held = [r for r in self._requests.values() if r.status is RequestStatus.HELD]
        if {*running, *waiting, *held} != set(self._requests.values()):
            raise RuntimeError("A request is neither running, waiting nor held.")
        for queue, status in ((running, RequestStatus.RUNNING), (waiting, RequestStatus.WAITING)):
            keys = [req.key for req in queue]
            if keys != sorted(set(keys)) or any(req.status is not status for req in queue):
                raise RuntimeError(f"The queue of {status.name.lower()} requests is broken.")
        for req in waiting + held:
            if req.num_computed_tokens or req.tables.num_held:
                raise RuntimeError(f"Request {req.req_id} does not run but holds blocks.")
        for req in running:
            if not len(req.token_ids) <= req.num_expected_tokens <= req.max_tokens_total:
                raise RuntimeError(f"Request {req.req_id} expects impossible tokens.")
            if not 0 <= req.num_computed_tokens <= req.tables.capacity:
                raise RuntimeError(f"Request {req.req_id} computed more than its blocks hold.")

    def _plan_running(self, plan: StepPlan, in_flight: list[Request], room: StepRoom) -> bool:
        """Plan the running requests; whether any was preempted."""
        behind = len(self._running)
        num_preemptions = self._stats.num_preemptions
        for req in self._running:
            behind -= 1
            missing = req.num_expected_tokens - req.num_computed_tokens
            if missing <= 0 or req.num_expected_tokens > req.compute_limit or req.drafts_in_flight:
                continue
            if room.tokens <= 0:
                break
            is_prompt = missing > 1
            if is_prompt or req.draft_token_ids:
                # A token of the budget is left for each request behind, so that a long prompt
                # does not stop those that generate.
                missing = self._chunk(req, missing, room, min(behind, room.tokens - 1))
                if not missing:
                    self._want_encoded(plan, req, req.num_computed_tokens)
                    continue
            blocks = self._no_blocks
            if req.num_computed_tokens + missing > req.tables.capacity:
                grown = self._grow(req, req.num_computed_tokens + missing)
                if grown is None:
                    break
                blocks = grown
            if is_prompt:
                room.take_prompt(req.num_computed_tokens, missing)
            else:
                room.take(missing)
            plan.requests.append(self._advance(req, missing, blocks))
            in_flight.append(req)
        return self._stats.num_preemptions > num_preemptions

    def _chunk(self, req: Request, missing: int, room: StepRoom, reserved: int) -> int:
        """Tokens to compute of a request that misses several or has drafts; trims the drafts."""
        num_tokens = 1
        if missing > 1:
            start = req.num_computed_tokens
            num_tokens = room.prompt_tokens(start, missing, reserved)
            if self.limits.enable_chunked_prefill:
                num_tokens = req.num_ready(start, num_tokens)
            num_tokens = self.kv.until_kept(req.tables, start, num_tokens)
            num_tokens = self.limits.whole(req.message.media, start, num_tokens, room.tokens)
        if req.draft_token_ids:
            most = room.tokens - reserved - num_tokens
            most = min(most, req.compute_limit - req.num_expected_tokens)
            if num_tokens < missing or req.num_placeholders:
                most = 0  # They would not follow the last token computed, or guess a known one.
            del req.draft_token_ids[max(0, most) :]
            end = req.num_computed_tokens + num_tokens + len(req.draft_token_ids)
            if not self.kv.has_room(req.tables, end):
                req.draft_token_ids = []  # Nobody is preempted for a guess.
        return num_tokens + len(req.draft_token_ids)

    def _want_encoded(self, plan: StepPlan, req: Request, start: int) -> None:
        """Have the media behind `start` encoded if a request waits for them, one request's at a
        time: what is computed of a step follows its streams, and encoding takes what is left."""
        if plan.encode or req.num_ready(start, 1):
            return
        end = start + self.limits.max_num_batched_tokens
        plan.encode = [
            item
            for item in req.message.media
            if start < item.start + item.length
            and item.start < end
            and item.content_hash not in req.encoded
        ][:ENCODE_AHEAD]
        plan.encode_for = req.req_id

    def _grow(self, req: Request, num_tokens: int) -> list[list[int]] | None:
        """Blocks for a running request, taken from the last in order if need be; None when that
        is the request itself. Whoever is behind it is not planned yet."""
        while (blocks := self.kv.allocate(req.tables, num_tokens)) is None:
            victim = self._running.pop_last()
            self._preempt(victim)
            if victim is req:
                return None
        return blocks

    def _plan_waiting(self, plan: StepPlan, in_flight: list[Request], room: StepRoom) -> None:
        running, waiting = self._running, self._waiting
        if room.tokens <= 0 or not len(waiting) or len(running) >= self.limits.max_num_reqs:
            return
        spare = self._admission.spare_bytes(running)
        index = 0
        while index < len(waiting) and room.tokens > 0 and len(running) < self.limits.max_num_reqs:
            req = waiting[index]
            start = self._admission.consider(req, room, spare)
            if isinstance(start, Unencoded):
                self._want_encoded(plan, req, start.start)
            if start is Refusal.LATER or isinstance(start, Unencoded):
                index += 1
                continue
            known = req.has_row
            if not isinstance(start, Start) or (planned := self._start(req, start)) is None:
                break
            plan.rows.append(NewRow(request=None if known else req.message, req_id=req.req_id))
            plan.requests.append(planned)
            in_flight.append(req)
            room.take_prompt(planned.num_computed_tokens, planned.num_tokens)
            # One more for the block that its output will grow into.
            spare -= start.num_bytes + self._admission.growth(req)

    def _start(self, req: Request, start: Start) -> PlannedRequest | None:
        """Let a request run; None, with nothing changed, where its blocks find no room although
        the bytes would."""
        hit = start.hit
        num_tokens = self._take_blocks(req, hit, start.num_tokens)
        if not num_tokens:
            if len(self._running):
                return None
            # Cached blocks can lie so that nothing fits between them; without, any request fits.
            self.kv.reset_prefix_cache()
            hit = self.kv.match_prefix([], 0)
            num_tokens = self._take_blocks(req, hit, start.num_tokens)
            if not num_tokens:
                return None  # somebody who is no request holds blocks
        self._waiting.remove(req)
        self._running.push(req)
        req.status = RequestStatus.RUNNING
        if not req.has_row:
            req.has_row = True
            req.num_cached_tokens = req.num_prompt_counted = hit.num_tokens
            if req.message.arrival_time:
                req.queue_seconds = max(0.0, time.time() - req.message.arrival_time)
            if req.reads_prefix_cache:
                self._stats.prefix_queries += req.prompt_len
                self._stats.prefix_hits += hit.num_tokens
                if req.block_hashes is not None:
                    req.prefix_miss = self.kv.why_missed(req.block_hashes.hashes, hit)
        req.num_computed_tokens = hit.num_tokens
        if req.block_hashes is not None:
            num_full = len(req.token_ids) // self.kv.block_size
            req.block_hashes.extend(req.token_ids, num_full)
            self._sharing.claim(req, self._coming(req, req.block_hashes))
        return self._advance(req, num_tokens, [list(table) for table in req.tables.tables])

    def _take_blocks(self, req: Request, hit: PrefixHit, num_tokens: int) -> int:
        """Give a request its first blocks, for at most `num_tokens` tokens behind the hit: for how
        many; 0, with nothing changed, where they find no room."""
        message, tables = req.message, req.tables
        self.kv.attach(tables, hit)
        self.kv.want_states(tables, message.prompt_token_ids, message.eos_token_ids, hit)
        num_tokens = self.kv.until_kept(tables, hit.num_tokens, num_tokens)
        if self.kv.allocate(tables, hit.num_tokens + num_tokens) is None:
            self.kv.free(tables)
            return 0
        return num_tokens

    def _coming(self, req: Request, known: BlockHashes) -> list[bytes]:
        """Hashes of the blocks that others may wait for a request to compute."""
        if self.kv.has_states:
            return self.kv.hashes_with_states(req.tables, known.hashes)
        return known.hashes[req.tables.num_cached :]

    def _advance(self, req: Request, num_tokens: int, blocks: list[list[int]]) -> PlannedRequest:
        """Plan a request's next tokens, drafts last, and count them as computed and expected."""
        start = req.num_computed_tokens
        end = start + num_tokens
        drafts = req.draft_token_ids
        last = end - len(drafts) == req.num_expected_tokens
        req.num_computed_tokens = end
        if drafts:
            req.draft_token_ids = []
            req.drafts_in_flight = True
        if last and req.generates:
            req.num_expected_tokens = end + 1
        return PlannedRequest(
            req_id=req.req_id,
            num_computed_tokens=start,
            num_tokens=num_tokens,
            new_block_ids=blocks,
            states=self.kv.plan_states(req.tables, start) if self.kv.has_states else NO_STATES,
            draft_token_ids=drafts,
            samples=last and (req.generates or req.pools),
        )

    def _preempt(self, req: Request) -> None:
        """Send a request, already taken from `_running`, back to its place in the queue."""
        self._give_up_blocks(req)
        req.num_computed_tokens = 0
        req.reset_step = self._step_id
        req.draft_token_ids = []
        req.encoded.clear()
        req.num_preemptions += 1
        self._stats.num_preemptions += 1
        req.status = RequestStatus.WAITING
        self._waiting.push(req)

    def _remove(self, req: Request) -> None:
        if req.status is RequestStatus.RUNNING:
            self._running.remove(req)
            self._give_up_blocks(req)
        elif req.status is RequestStatus.WAITING:
            self._waiting.remove(req)
        req.status = RequestStatus.FINISHED
        del self._requests[req.req_id]
        if req.has_row:
            self._freed.append(req.req_id)

    def _give_up_blocks(self, req: Request) -> None:
        if req.block_hashes is not None:
            self._sharing.release(req, self._coming(req, req.block_hashes))
        self.kv.free(req.tables)

    def _count_prompt(self, req: Request, planned: PlannedRequest) -> None:
        done = min(planned.num_computed_tokens + planned.num_tokens, req.prompt_len)
        if done > req.num_prompt_counted:
            self._stats.prompt_tokens += done - req.num_prompt_counted
            req.num_prompt_counted = done


def _went_back(req: Request, planned: PlannedRequest) -> bool:
    """Whether a request computes tokens again that its states have seen already."""
    return req.num_computed_tokens < planned.num_computed_tokens + planned.num_tokens
