"""Which requests compute how many tokens in the next step, and what a step's result changes."""

import math
from collections import deque

import msgspec
import numpy as np

from pagoda.base.errors import RequestError
from pagoda.core.admission import Admission, Start
from pagoda.core.batch import RunningBatch
from pagoda.core.counters import (
    count_drafts,
    count_prompt,
    count_start,
    count_step,
    new_counters,
)
from pagoda.core.kv_events import KVEvents
from pagoda.core.kvcache.block_hash import BlockHashes
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.leaving import LeavingRows
from pagoda.core.limits import SchedulerLimits, check_capacity, check_message
from pagoda.core.messages import AddRequest, Deltas, EngineStats, RequestDelta
from pagoda.core.pace import StepRoom
from pagoda.core.plan import NewBlocks, NewRow, RequestResult, StepPlan, StepResult
from pagoda.core.planning import Finished, PlanBuilder
from pagoda.core.progress import Progress
from pagoda.core.queue import Members, RequestQueue, RunningQueue, check_queues
from pagoda.core.request import FinishReason, Request, RequestStatus
from pagoda.core.sessions import Sessions
from pagoda.core.shares import Shares
from pagoda.core.sharing import PrefixesInFlight
from pagoda.core.speculation.speculator import Speculator
from pagoda.core.step_time import StepTimes, only_decodes

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

    def __init__(
        self, limits: SchedulerLimits, kv: KVCacheManager, speculator: Speculator | None = None
    ):
        """`speculator`: what guesses tokens ahead; None: nobody does."""
        self.limits = limits
        self.kv = kv
        self._requests: dict[str, Request] = {}
        self._batch = RunningBatch()
        self._running = RunningQueue()
        self._waiting = RequestQueue()
        self._sharing = PrefixesInFlight()
        self._sessions = Sessions()
        self._admission = Admission(limits, kv, self._sharing)
        self.progress = Progress(kv, self._sharing, self._requests, limits.num_stages > 1)
        self.speculator = speculator
        self._times = StepTimes()
        self._shares = Shares(limits, self._admission, self._times, self._batch)
        self._in_flight: dict[int, Finished] = {}
        self._last: Finished | None = None
        """The last plan."""
        self._freed: list[int] = []
        self._leaving = LeavingRows(limits.num_stages)
        self._num_arrived = 0
        self._step_id = 0
        self._stats = new_counters(kv.num_blocks)

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
            self._batch,
        )
        check_capacity(req, self.limits, self.kv)
        req.num_cached_tokens = self._admission.num_cached(req)
        if hashes is not None:
            num_cached = req.num_cached_tokens // self.kv.block_size
            for done in self._sessions.arrive(message, hashes, num_cached):
                self.kv.expend(done)
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

    def schedule(self) -> StepPlan | None:
        """The next plan, or None when nothing can run before a result, a release or a request
        arrives. Rows of ended requests are reported in the next plan that computes something."""
        if self.speculator is not None:
            self.speculator.propose(self._running.members, self._batch, self._times)
        finished = self._plan_next() or self._plan_all()
        if finished is None:
            return None
        plan = finished.plan
        self._step_id, self._last = plan.step_id, finished
        plan.freed, self._freed = self._freed, []
        if self.speculator is not None:
            finished.have_drafted(self.speculator.num_drafts, self.kv)
        plan.copies = self.kv.host.take_orders()
        self._in_flight[plan.step_id] = finished
        return plan

    def _plan_next(self) -> Finished | None:
        """The next plan if it follows the last one, as most do: nobody starts, and nobody that runs
        needs more than a token and the next block."""
        last, batch = self._last, self._batch
        if last is None or not last.is_of_streams or batch.num_jumps != last.num_jumps:
            return None
        members = self._running.members
        if self._others_wait or members is not last.members:
            return None
        full, others = batch.planned_alone(members.rows)
        if others:
            return None
        new_blocks = self._extend(full, members) if full else []
        if new_blocks is None:
            return None
        finished = last.next(batch)
        finished.plan.new_blocks = new_blocks
        return finished

    @property
    def _others_wait(self) -> bool:
        """Whether a request may start now, as far as seats tell."""
        return bool(len(self._waiting)) and len(self._running) < self.limits.max_num_reqs

    def _plan_all(self) -> Finished | None:
        """The next plan, request by request."""
        step = PlanBuilder(self._step_id + 1, self._batch)
        room = StepRoom(self.limits, len(self._running))
        preempted = bool(len(self._running)) and self._plan_running(step, room)
        if preempted:
            room.granted = None
        if not (preempted and step.requests):
            self._plan_waiting(step, room)
        if not step.requests and not step.plan.encode:
            return None
        return step.finish(self._last)

    def commit(self, plan: StepPlan, result: StepResult, seconds: float | None = None) -> Deltas:
        """Take in a plan's result: what clients are to be told.

        `seconds` is what the step took, where that tells of other steps. Results of requests
        that are gone, even if their id is taken again, change nothing.
        """
        _, members, size, _, is_of_streams = self._in_flight.pop(plan.step_id)
        self._freed += self._leaving.committed(plan.step_id)
        self.kv.host.copied(plan.copies, result.copied)
        count_step(self._stats, len(plan.req_ids), int(size.tokens))
        if result.encoded and plan.encode_for in self._requests:
            self._requests[plan.encode_for].encoded.update(result.encoded)
        if seconds is not None and not plan.encode:
            decodes = is_of_streams or only_decodes(plan)
            self._times.observe(size, seconds - result.draft_seconds, decodes)
            if decodes and plan.num_drafts and self.speculator is not None:
                self.speculator.learn_drafting(plan.num_drafts, result.draft_seconds)
        if result.tokens:
            deltas = self._take_tokens(members, plan, result.tokens)
        else:
            entries = {entry.req_id: entry for entry in result.results}
            taken = [
                self._take(req, plan, place, entries.get(req.req_id, _NOTHING))
                for place, req in enumerate(members.requests)
            ]
            deltas = Deltas([delta for delta in taken if delta is not None])
        if result.drafts and self.speculator is not None:
            self.speculator.take_drafts(members, result.drafts)
        return deltas

    def _take_tokens(self, members: Members, plan: StepPlan, tokens: list[int]) -> Deltas:
        """Take in one token of each request: all at once, but for those to which more happens."""
        batch, rows = self._batch, plan.rows
        in_bulk = batch.committed_in_bulk(rows, plan.starts, plan.lens, plan.follows)
        if batch.may_stop(tokens):
            goes_on = [
                token not in req.stop_ids
                for req, token in zip(members.requests, tokens, strict=True)
            ]
            in_bulk = np.array(goes_on) if in_bulk is None else in_bulk & goes_on
        lists, req_ids, bulk_tokens, others = members.token_ids, members.req_ids, tokens, []
        if in_bulk is not None:
            others = (~in_bulk).nonzero()[0].tolist()
            lists, req_ids, bulk_tokens = list(lists), list(req_ids), list(tokens)
            for place in reversed(others):
                del lists[place], req_ids[place], bulk_tokens[place]
            rows = rows[in_bulk]
        batch.known[rows] += 1
        deque(map(list.append, lists, bulk_tokens), maxlen=0)
        self._stats.generation_tokens += len(bulk_tokens)
        deltas = Deltas(req_ids=req_ids, tokens=bulk_tokens)
        for place in others:
            sampled = [] if int(plan.rows[place]) in plan.unsampled else [tokens[place]]
            entry = RequestResult(req_id=plan.req_ids[place], token_ids=sampled)
            delta = self._take(members.requests[place], plan, place, entry)
            if delta is not None:
                deltas.others.append(delta)
        return deltas

    def _take(
        self, req: Request, plan: StepPlan, place: int, entry: RequestResult
    ) -> RequestDelta | None:
        self._batch.end_bulk_commits()
        if req.status is RequestStatus.FINISHED:
            return None
        delta = self.progress.apply(req, plan, place, entry)
        if req.row in plan.drafts:
            count_drafts(self._stats, req, len(plan.drafts[req.row]), entry, delta)
        end = int(plan.starts[place] + plan.lens[place])
        if req.num_prompt_counted < req.prompt_len:
            count_prompt(self._stats, req, end)
        # A request whose token did not come computes the last one again, which its states have
        # seen: it begins anew.
        again = not entry.token_ids and req.num_computed_tokens < end
        if again and self.kv.has_states and req.is_running:
            self._running.remove(req)
            self._preempt(req)
        if delta is not None:
            delta.num_draft_tokens = req.num_draft_tokens
            delta.num_accepted_tokens = req.num_accepted_tokens
            self._stats.generation_tokens += len(delta.token_ids)
            if delta.finish_reason is not None:
                self._remove(req)
        return delta

    def has_work(self) -> bool:
        """Whether a request runs or wants to; held requests do not count."""
        return bool(len(self._running) or len(self._waiting))

    @property
    def req_ids(self) -> list[str]:
        """Ids of the requests that have not ended, held ones among them."""
        return list(self._requests)

    def watch_cache(self) -> KVEvents:
        """Have all events of the prefix cache collected from now on."""
        return KVEvents(self.kv, self._requests)

    @property
    def adapters(self) -> set[str]:
        """Those of all requests, running or waiting."""
        adapters = (req.message.adapter for req in self._requests.values())
        return {adapter for adapter in adapters if adapter is not None}

    def stats(self) -> EngineStats:
        """A snapshot; `step_seconds` is the engine's to fill in."""
        return msgspec.structs.replace(
            self._stats,
            num_running=len(self._running),
            num_waiting=len(self._requests) - len(self._running),
            num_held=len(self._requests) - len(self._running) - len(self._waiting),
            steps_by_tokens=list(self._stats.steps_by_tokens),
            spec_accepted_per_position=list(self._stats.spec_accepted_per_position),
            blocks_free=self.kv.num_free_blocks,
        )

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes that no request uses; True when none are left."""
        return self.kv.reset_prefix_cache()

    def check_integrity(self) -> None:
        """RuntimeError when blocks, queues and requests do not add up."""
        self.kv.check_integrity()
        self._sharing.check()
        check_queues(self._requests.values(), list(self._running), list(self._waiting))
        owners = [req for req in (*self._requests.values(), *self._leaving) if req.has_row]
        self._batch.check(req.row for req in owners)
        for req in owners:
            if self._batch.known[req.row] != len(req.token_ids):
                raise RuntimeError(f"Request {req.req_id} has tokens that its row does not know.")

    def _plan_running(self, step: PlanBuilder, room: StepRoom) -> bool:
        """Plan the running requests; whether any was preempted.

        Between those that need a look, streams are moved on all at once, which is most of a large
        batch in nearly every step. All are planned in order, so whoever is preempted for the sake
        of another is not planned yet."""
        num_preemptions = self._stats.num_preemptions
        members, count, first = self._running.members, len(self._running), 0
        full, others = self._batch.planned_alone(members.rows)
        for place in (*others, count):
            end = min(place, len(self._running), first + room.tokens)
            growing = [member for member in full if first <= member < end]
            new_blocks = self._extend(growing, members) if growing else []
            alone = growing if new_blocks is None else []
            step.grow_each(new_blocks or [])
            for stop in (*alone, place):
                # Requests are taken from the end of the queue only.
                end = min(stop, len(self._running), first + room.tokens)
                if first < end:
                    step.add_streams(members, first, end)
                    room.tokens -= end - first
                first = stop + 1
                here = stop < len(self._running)
                if not here or not self._plan_one(members.requests[stop], step, room, stop, count):
                    return self._stats.num_preemptions > num_preemptions
        return self._stats.num_preemptions > num_preemptions

    def _extend(self, places: list[int], members: Members) -> list[NewBlocks] | None:
        """Give streams whose tables are full their next block each, if it is there for all: what
        is new, by attention group, else None."""
        blocks = self.kv.extend([members.requests[place].tables for place in places])
        if blocks is None:
            return None
        batch, rows, size = self._batch, members.rows[places], self.kv.block_size
        full = batch.planned_in_bulk_until[rows]
        batch.planned_in_bulk_until[rows] = np.minimum(full + size, batch.compute_limit[rows])
        columns = full // size
        return [NewBlocks(rows, columns, np.array(mine, np.int64)) for mine in blocks]

    def _plan_one(
        self, req: Request, step: PlanBuilder, room: StepRoom, place: int, count: int
    ) -> bool:
        """Plan what the running request at a place misses, if anything; False where no room is
        left for those behind it either."""
        start = req.num_computed_tokens
        missing = req.num_expected_tokens - start
        if missing <= 0 or req.num_expected_tokens > req.compute_limit or req.sits_out:
            return True
        if missing == 1 and not room.take_stream():
            return True
        if room.tokens <= 0:
            return False
        if self.kv.has_states and self._others_wait:
            req.draft_token_ids = []  # Their states take memory, which is for whoever waits.
        is_prompt = missing > 1
        if is_prompt or req.draft_token_ids:
            if is_prompt and room.granted is None:
                room.prompts_left = self._shares.divide(room, self._running, self._waiting, place)
            # A token of the budget is left for each stream behind, so that a long prompt does not
            # stop those that generate.
            room.prompts_left -= is_prompt
            behind = count - 1 - place - room.prompts_left
            missing = room.chunk(req, missing, min(behind, room.tokens - 1), self.kv)
            if not missing:
                self._want_encoded(step.plan, req, start)
                return True
        if start + missing > req.tables.capacity and not self._grow(req, start + missing, step):
            return False
        room.tokens -= self.progress.plan(req, missing, step)
        return True

    def _want_encoded(self, plan: StepPlan, req: Request, start: int) -> None:
        """Have the media behind `start` encoded if a request waits for them, one request's at a
        time: what is computed of a step follows its streams, and encoding takes what is left."""
        if not plan.encode and not req.num_ready(start, 1):
            plan.encode = req.to_encode(start, start + self.limits.max_num_batched_tokens)
            plan.encode_for = req.req_id

    def _grow(self, req: Request, num_tokens: int, step: PlanBuilder) -> bool:
        """Give a running request blocks, taken from the last in order if need be; False when that
        is the request itself. Whoever is behind it is not planned yet."""
        column = req.tables.capacity // self.kv.block_size
        while (blocks := self.kv.allocate(req.tables, num_tokens)) is None:
            if self.kv.has_windows and self._in_flight and self._running[-1] is req:
                return False  # It waits for the blocks that its window passes.
            victim = self._running.pop_last()
            self._preempt(victim)
            if victim is req:
                return False
        step.grow(req, blocks, column)
        return True

    def _plan_waiting(self, step: PlanBuilder, room: StepRoom) -> None:
        full = len(self._running) >= self.limits.max_num_reqs
        if room.tokens <= 0 or not len(self._waiting) or full:
            return
        if room.granted is None:
            self._shares.divide(room, self._running, self._waiting, len(self._running))
        starting = [req for req in room.granted or () if not req.is_running]
        for req in sorted(starting, key=lambda req: req.key):
            room.tokens -= self._start(req, step, room)
        for req, start in room.unencoded:
            self._want_encoded(step.plan, req, start)

    def _start(self, req: Request, step: PlanBuilder, room: StepRoom) -> int:
        """Let a request run: with how many tokens; 0, with nothing changed, where that is no
        longer possible."""
        # What was known of its prefix may have made room for the requests that run.
        start = self._admission.consider(req, math.inf)
        if not isinstance(start, Start):
            return 0
        num_tokens = room.first_chunk(req, start.hit.num_tokens)
        alone = not len(self._running)
        hit, num_tokens = self._admission.take_blocks(req, start.hit, num_tokens, alone)
        if not num_tokens:
            return 0
        self._waiting.remove(req)
        known = req.has_row
        if not known:
            req.take_row()
            count_start(self._stats, req, hit.num_tokens)
            if req.reads_prefix_cache and req.block_hashes is not None:
                req.prefix_miss = self.kv.why_missed(req.block_hashes.hashes, hit)
                req.cached_tiers = self.kv.tiers(req.block_hashes.hashes, hit)
        self._running.push(req)
        req.status = RequestStatus.RUNNING
        req.num_computed_tokens = hit.num_tokens
        if req.block_hashes is not None:
            num_full = len(req.token_ids) // self.kv.block_size
            req.block_hashes.extend(req.token_ids, num_full)
            self._sharing.claim(req, self._admission.coming(req, req.block_hashes))
        message = None if known else req.message
        step.plan.new_rows.append(NewRow(row=req.row, req_id=req.req_id, request=message))
        step.grow(req, req.tables.tables)
        self.progress.plan(req, num_tokens, step)
        return num_tokens

    def _preempt(self, req: Request) -> None:
        """Send a request, already taken from `_running`, back to its place in the queue."""
        self._give_up_blocks(req)
        req.start_over(self._step_id)
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
        self._stats.longest_request = max(self._stats.longest_request, len(req.token_ids))
        del self._requests[req.req_id]
        if self.speculator is not None:
            self.speculator.forget(req)
        if req.has_row:
            self._freed += self._leaving.leave(req, self._step_id if self._in_flight else 0)

    def _give_up_blocks(self, req: Request) -> None:
        self.progress.publish(req)
        if req.block_hashes is not None:
            self._sharing.release(req, self._admission.coming(req, req.block_hashes))
        self.kv.free(req.tables)
