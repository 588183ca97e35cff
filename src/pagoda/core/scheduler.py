"""Which requests compute how many tokens in the next step, and what a step's result changes."""

import math
import time
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from pagoda.base.errors import RequestError
from pagoda.core.admission import Admission, Start
from pagoda.core.kvcache.block_hash import BlockHashes
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.limits import SchedulerLimits, check_capacity, check_message
from pagoda.core.messages import STEP_TOKENS, AddRequest, Deltas, EngineStats, RequestDelta
from pagoda.core.pace import StepRoom
from pagoda.core.plan import (
    NewRow,
    PlannedRequest,
    RequestResult,
    StepPlan,
    StepResult,
)
from pagoda.core.progress import Progress
from pagoda.core.queue import RequestQueue, check_queues
from pagoda.core.request import FinishReason, Request, RequestStatus
from pagoda.core.shares import Shares
from pagoda.core.sharing import PrefixesInFlight
from pagoda.core.step_time import StepTimes, only_decodes, size_of, size_of_streams
from pagoda.core.streams import StreamRun

__all__ = ["Scheduler", "SchedulerLimits"]

_NOTHING = RequestResult(req_id="")


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
        self._shares = Shares(limits, self._admission, self._times)
        self._in_flight: dict[int, tuple[list[Request], bool, StreamRun | None]] = {}
        """Of each plan its requests, whether each gets one token, and the run it belongs to."""
        self._streams: list[Request] = []
        """Of the last plan, if each of its requests got its next token and none was taken back."""
        self._run: StreamRun | None = None
        """Of these streams: what is behind in them while it lasts. `_settle` ends it."""
        self._bare = False
        """The last result was of bare tokens."""
        self._freed: list[str] = []
        self._num_arrived = 0
        self._step_id = 0
        self._stats = EngineStats(
            blocks_total=kv.num_blocks, steps_by_tokens=[0] * (len(STEP_TOKENS) + 1)
        )

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
            # Of the whole prompt here, once: what looks for it while steps are planned only reads.
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
        req.num_cached_tokens = self._admission.num_cached(req)
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
            self._settle()
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
            self._settle()
            req.draft_token_ids = list(draft_token_ids)
            req.steady_until = req.quiet_until = 0

    def schedule(self) -> StepPlan | None:
        """The next plan, or None when nothing can run before a result, a release or a request
        arrives. Rows of ended requests are reported in the next plan that computes something."""
        plan = StepPlan(step_id=self._step_id + 1)
        if self._run is not None:
            if self._only_streams() and self._run.plan_next(plan, self.kv):
                self._step_id = plan.step_id
                self._in_flight[plan.step_id] = self._run.requests, True, self._run
                return plan
            self._settle()
        in_flight: list[Request] = []
        room = StepRoom(self.limits)
        preempted = self._plan_running(plan, in_flight, room)
        if preempted:
            room.granted = None
        if not (preempted and in_flight):
            self._plan_waiting(plan, in_flight, room)
        if not in_flight and not plan.encode:
            return None
        self._step_id = plan.step_id
        plan.freed, self._freed = self._freed, []
        one_each = room.tokens == self.limits.max_num_batched_tokens - len(in_flight)
        one_each = one_each and not plan.unsampled
        self._in_flight[plan.step_id] = in_flight, one_each, None
        streams = in_flight if one_each and not plan.rows else []
        plan.again = bool(streams) and streams == self._streams and not plan.freed
        self._streams = streams
        if plan.again and self._bare and self._only_streams() and not self.kv.has_states:
            self._run = StreamRun(streams, plan)
        return plan

    def _only_streams(self) -> bool:
        """Whether the next plan is that of the last one's streams, if nothing happens to them."""
        running = len(self._running)
        most = min(self.limits.max_num_reqs, self.limits.max_num_batched_tokens)
        full = not len(self._waiting) or running >= most
        return full and running == len(self._streams) and not self._freed

    def _settle(self) -> None:
        """End the run: requests say themselves how far they are."""
        if self._run is not None:
            self._run.sync()
            self._run = None

    def commit(self, plan: StepPlan, result: StepResult, seconds: float | None = None) -> Deltas:
        """Take in a plan's result: what clients are to be told.

        `seconds` is what the step took, where that tells of other steps. Results of requests
        that are gone, even if their id is taken again, change nothing.
        """
        stats = self._stats
        in_flight, one_each, run = self._in_flight.pop(plan.step_id)
        size = size_of_streams(plan) if one_each else size_of(plan)
        stats.num_steps += 1
        stats.computed_tokens += int(size.tokens)
        stats.steps_by_tokens[bisect_left(STEP_TOKENS, size.tokens)] += 1
        if result.encoded and plan.encode_for in self._requests:
            self._requests[plan.encode_for].encoded.update(result.encoded)
        if seconds is not None and not plan.encode:
            self._times.observe(size, seconds, one_each or only_decodes(plan))
        self._bare = bool(result.tokens)
        if self._run is not None:
            if run is self._run and result.tokens:
                return self._take_run(self._run, plan, result.tokens)
            self._run.sync()
        if result.tokens:
            return Deltas(self._take_tokens(in_flight, plan, result.tokens))
        entries = {entry.req_id: entry for entry in result.results}
        taken = [
            self._take(req, planned, entries.get(planned.req_id, _NOTHING), plan.step_id)
            for req, planned in zip(in_flight, plan.requests, strict=True)
        ]
        return Deltas([delta for delta in taken if delta is not None])

    def _take_run(self, run: StreamRun, plan: StepPlan, tokens: list[int]) -> Deltas:
        """Take in one token for each request of a run."""
        careful = run.take(plan.ahead, tokens)
        if not careful:
            self._stats.generation_tokens += len(tokens)
            return Deltas(req_ids=plan.req_ids, tokens=tokens)
        quiet = Deltas(req_ids=list(plan.req_ids), tokens=list(tokens))
        for place in reversed(careful):
            del quiet.req_ids[place], quiet.tokens[place]
        self._stats.generation_tokens += len(quiet.tokens)
        quiet.others = self._take_each(careful, run.requests, plan, tokens)
        run.mind_again(careful, plan.ahead)
        return quiet

    def _take_tokens(
        self, in_flight: list[Request], plan: StepPlan, tokens: list[int]
    ) -> list[RequestDelta]:
        """Take in one token for each request of a plan."""
        deltas, others = self._progress.take_quietly(in_flight, plan, tokens)
        self._stats.generation_tokens += len(deltas)
        return deltas + self._take_each(others, in_flight, plan, tokens)

    def _take_each(
        self, places: Sequence[int], in_flight: list[Request], plan: StepPlan, tokens: list[int]
    ) -> list[RequestDelta]:
        deltas = []
        for i in places:
            entry = RequestResult(req_id=plan.req_ids[i], token_ids=[tokens[i]])
            delta = self._take(in_flight[i], plan.request(i), entry, plan.step_id)
            if delta is not None:
                deltas.append(delta)
        return deltas

    def _take(
        self, req: Request, planned: PlannedRequest, entry: RequestResult, step_id: int
    ) -> RequestDelta | None:
        if req.status is RequestStatus.FINISHED:
            return None
        delta = self._progress.apply(req, planned, entry, step_id)
        if _went_back(req, planned):
            self._streams, self._run = [], None
        if req.num_prompt_counted < req.prompt_len:
            self._count_prompt(req, planned)
        if self.kv.has_states and req.is_running and _went_back(req, planned):
            self._running.remove(req)
            self._preempt(req)
        if delta is not None:
            self._stats.generation_tokens += len(delta.token_ids)
            if delta.finish_reason is not None:
                self._remove(req)
        return delta

    def has_work(self) -> bool:
        """Whether a request runs or wants to; held requests do not count."""
        return bool(len(self._running) or len(self._waiting))

    @property
    def req_ids(self) -> list[str]:
        """Of the requests that have not ended, held ones among them."""
        return list(self._requests)

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
        if self._run is not None:
            self._run.sync()
        self.kv.check_integrity()
        self._sharing.check()
        check_queues(self._requests.values(), list(self._running), list(self._waiting))

    def _plan_running(self, plan: StepPlan, in_flight: list[Request], room: StepRoom) -> bool:
        """Plan the running requests; whether any was preempted."""
        count = len(self._running)
        num_preemptions = self._stats.num_preemptions
        req_ids, starts, lens = plan.req_ids, plan.starts, plan.lens
        prompts_left = 0
        for place, req in enumerate(self._running):
            start = req.num_computed_tokens
            if room.tokens > 0 and (start < req.steady_until or self._extend(req, plan)):
                # Nearly all of a large batch, nearly always: this costs a quarter of the rest.
                req.num_computed_tokens = start + 1
                req.num_expected_tokens = start + 2
                room.tokens -= 1
                req_ids.append(req.req_id)
                starts.append(start)
                lens.append(1)
                in_flight.append(req)
                continue
            missing = req.num_expected_tokens - req.num_computed_tokens
            if missing <= 0 or req.num_expected_tokens > req.compute_limit or req.drafts_in_flight:
                continue
            if room.tokens <= 0:
                break
            is_prompt = missing > 1
            if is_prompt or req.draft_token_ids:
                if is_prompt and room.granted is None:
                    prompts_left = self._shares.divide(room, self._running, self._waiting, place)
                # A token of the budget is left for each stream behind, so that a long prompt
                # does not stop those that generate.
                prompts_left -= is_prompt
                behind = count - 1 - place - prompts_left
                missing = room.chunk(req, missing, min(behind, room.tokens - 1), self.kv)
                if not missing:
                    self._want_encoded(plan, req, req.num_computed_tokens)
                    continue
            blocks: list[list[int]] = []
            if req.num_computed_tokens + missing > req.tables.capacity:
                grown = self._grow(req, req.num_computed_tokens + missing)
                if grown is None:
                    break
                blocks = grown
            room.tokens -= missing
            plan.append(self._progress.plan(req, missing, blocks))
            in_flight.append(req)
        return self._stats.num_preemptions > num_preemptions

    def _want_encoded(self, plan: StepPlan, req: Request, start: int) -> None:
        """Have the media behind `start` encoded if a request waits for them, one request's at a
        time: what is computed of a step follows its streams, and encoding takes what is left."""
        if not plan.encode and not req.num_ready(start, 1):
            plan.encode = req.to_encode(start, start + self.limits.max_num_batched_tokens)
            plan.encode_for = req.req_id

    def _extend(self, req: Request, plan: StepPlan) -> bool:
        """Give a stream whose last block is full its next one; False where it is not that
        simple."""
        start = req.num_computed_tokens
        if not req.steady_until or start >= req.compute_limit:
            return False
        blocks = self.kv.allocate(req.tables, start + 1)
        if blocks is None:
            return False
        plan.new_blocks[req.req_id] = blocks
        req.steady_until = min(req.tables.capacity, req.compute_limit)
        return True

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
        full = len(self._running) >= self.limits.max_num_reqs
        if room.tokens <= 0 or not len(self._waiting) or full:
            return
        if room.granted is None:
            self._shares.divide(room, self._running, self._waiting, len(self._running))
        starting = [req for req in room.granted or () if not req.is_running]
        for req in sorted(starting, key=lambda req: req.key):
            known = req.has_row
            if (planned := self._start(req, room)) is None:
                continue
            plan.rows.append(NewRow(request=None if known else req.message, req_id=req.req_id))
            plan.append(planned)
            in_flight.append(req)
            room.tokens -= planned.num_tokens
        for req, start in room.unencoded:
            self._want_encoded(plan, req, start)

    def _start(self, req: Request, room: StepRoom) -> PlannedRequest | None:
        """Let a request run; None, with nothing changed, where that is no longer possible."""
        # What was known of its prefix may have made room for the requests that run.
        start = self._admission.consider(req, math.inf)
        if not isinstance(start, Start):
            return None
        num_tokens = room.first_chunk(req, start.hit.num_tokens)
        alone = not len(self._running)
        hit, num_tokens = self._admission.take_blocks(req, start.hit, num_tokens, alone)
        if not num_tokens:
            return None
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
            self._sharing.claim(req, self._admission.coming(req, req.block_hashes))
        return self._progress.plan(req, num_tokens, [list(table) for table in req.tables.tables])

    def _preempt(self, req: Request) -> None:
        """Send a request, already taken from `_running`, back to its place in the queue."""
        self._give_up_blocks(req)
        req.num_computed_tokens = req.quiet_until = req.steady_until = 0
        req.reset_step = self._step_id
        req.draft_token_ids = []
        req.encoded.clear()
        req.num_preemptions += 1
        self._stats.num_preemptions += 1
        req.status = RequestStatus.WAITING
        self._waiting.push(req)

    def _remove(self, req: Request) -> None:
        if req.status is RequestStatus.RUNNING:
            self._settle()
            self._running.remove(req)
            self._give_up_blocks(req)
        elif req.status is RequestStatus.WAITING:
            self._waiting.remove(req)
        req.status = RequestStatus.FINISHED
        req.quiet_until = 0
        del self._requests[req.req_id]
        if req.has_row:
            self._freed.append(req.req_id)

    def _give_up_blocks(self, req: Request) -> None:
        self._progress.publish(req)
        if req.block_hashes is not None:
            self._sharing.release(req, self._admission.coming(req, req.block_hashes))
        self.kv.free(req.tables)

    def _count_prompt(self, req: Request, planned: PlannedRequest) -> None:
        done = min(planned.num_computed_tokens + planned.num_tokens, req.prompt_len)
        if done > req.num_prompt_counted:
            self._stats.prompt_tokens += done - req.num_prompt_counted
            req.num_prompt_counted = done


def _went_back(req: Request, planned: PlannedRequest) -> bool:
    """Whether a request computes tokens again that its states have seen already."""
    return req.num_computed_tokens < planned.num_computed_tokens + planned.num_tokens
