"""After any sequence of operations blocks add up, KV is right and every request gets its tokens."""

import random
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from pagoda.base.errors import RequestError
from pagoda.core.kvcache import manager
from pagoda.core.kvcache.tables import BlockTables
from pagoda.core.messages import AddRequest, MediaItem, RequestDelta
from pagoda.core.plan import StepPlan, StepResult
from pagoda.core.request import Request
from pagoda.core.sampling import SamplingParams
from pagoda.core.speculation.proposer import Guess
from pagoda.core.speculation.speculator import SpeculationLimits, Speculator
from tests.plans import propose, shares

from .fake_runner import EOS, VOCAB, expected_output, make_scheduler

MAX_MODEL_LEN = 40

# Prompts are cut from few texts, so that prefixes meet in the cache.
TEXTS = [
    [(7 * text + 5 * i + i * i // 3) % VOCAB for i in range(MAX_MODEL_LEN)] for text in range(3)
]
SPECIAL = ["ignore_eos", "prompt_logprobs", "pool", "salt", "adapter", "media"]


@dataclass
class Tracked:
    message: AddRequest
    expected: list[int]
    delivered: list[int] = field(default_factory=list)
    prompt_logprobs: int = 0
    deltas: int = 0


SHAPES = [
    {"windows": (None,)},
    {"windows": (None, 6)},
    {"windows": (9,)},
    {"windows": (None, 3, 10)},
    {"windows": (None, 6), "num_layers": (1, 5)},
    {"windows": (6, None), "num_layers": (2, 3)},
    {"windows": (None,), "num_states": 2},
    {"windows": (None, 5), "num_layers": (2, 3), "num_states": 7},
]
"""Groups of one size and of several, with and without recurrent layers."""


class AskingSpeculator(Speculator):
    """Now and then the runner is asked for guesses, too; those are not verified here."""

    def propose(self, *args) -> None:
        super().propose(*args)
        self.num_drafts = self.proposer.guesser.choice((0, 0, 0, 1, 4))


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        # A context of 40 tokens would never keep a reply's state.
        self.patch = patch.object(manager, "REPLY_INTERVAL", 8)
        self.patch.start()

    @initialize(
        num_blocks=st.sampled_from([6, 10, 11, 12, 14, 20]),
        shape=st.sampled_from(SHAPES),
        budget=st.integers(1, 24),
        max_num_reqs=st.integers(1, 5),
        policy=st.sampled_from(["fcfs", "priority"]),
        chunked=st.booleans(),
        threshold=st.sampled_from([0, 0, 3]),
        depth=st.integers(1, 3),
        caching=st.sampled_from([True, True, True, False]),
        bound=st.sampled_from([{}, {"max_step_growth": 1.1}, {"max_step_seconds": 1e-3}]),
        chance=st.randoms(use_true_random=False),
        terse=st.booleans(),
        guesses=st.one_of(st.none(), st.integers(0, 99)),
        num_host_blocks=st.sampled_from([0, 0, 4, 12, 60]),
    )
    def start(
        self, num_blocks, shape, budget, max_num_reqs, policy, chunked, threshold, depth,
        caching, bound, chance, terse, guesses, num_host_blocks,
    ):  # fmt: skip
        self.scheduler, self.runner = make_scheduler(
            num_blocks=num_blocks * len(shape["windows"]) + 4 * ("num_states" in shape),
            **shape,
            prefix_caching=caching,
            num_host_blocks=num_host_blocks,
            max_num_reqs=max_num_reqs,
            max_num_batched_tokens=budget,
            max_model_len=MAX_MODEL_LEN,
            policy=policy,
            enable_chunked_prefill=chunked,
            long_prefill_token_threshold=threshold,
            **bound,
            speculator=None if guesses is None else AskingSpeculator(self, SpeculationLimits(4)),
        )
        # Its own: a failing draw inside the speculator would be taken for a fault of the guesser.
        self.guesser = random.Random(guesses)
        self.runner.terse = terse
        self.depth = depth
        self.chance = chance
        self.healthy = True
        self.in_flight: deque[tuple[StepPlan, StepResult]] = deque()
        self.live: dict[str, Tracked] = {}
        self.held: set[tuple[str, str]] = set()
        self.holders: list[BlockTables] = []

    # --- What guesses for the scheduler: sometimes right.

    chances = (0.9,)

    def guess(self, req: Request, most: int) -> list[Guess]:
        known = len(req.token_ids) - req.prompt_len
        tokens = self.live[req.req_id].expected[known : known + self.guesser.randint(0, most)]
        if self.guesser.random() < 0.3:
            tokens.append(VOCAB - 1)
        return [Guess(tokens[:most], [0] * len(tokens[:most]))]

    def forget(self, req: Request) -> None:
        pass

    # --- Operations.

    @precondition(lambda self: len(self.live) < 12)
    @rule(
        text=st.sampled_from(TEXTS),
        lengths=st.lists(st.integers(1, MAX_MODEL_LEN), min_size=1, max_size=4),
        max_tokens=st.sampled_from([0, 1, 5, 9, 20, None]),
        min_tokens=st.sampled_from([0, 0, 2]),
        special=st.sampled_from([None] * 6 + SPECIAL),
        priority=st.integers(0, 2),
        session=st.sampled_from([None, None, "one", "two"]),
        agent=st.sampled_from([None, None, "sub"]),
    )
    def add(
        self, text, lengths, max_tokens, min_tokens, special, priority, session, agent
    ):  # fmt: skip
        """Requests that share a text, as many as there are lengths."""
        pool = special == "pool"
        for length in lengths:
            req_id = next(f"r{i}" for i in count() if f"r{i}" not in self.live)
            message = AddRequest(
                req_id=req_id,
                prompt_token_ids=text[:length],
                sampling=SamplingParams(
                    max_tokens=max_tokens,
                    min_tokens=min_tokens if max_tokens is None else min(min_tokens, max_tokens),
                    ignore_eos=special == "ignore_eos",
                    stop_token_ids=[5],
                    prompt_logprobs=1 if special == "prompt_logprobs" else None,
                ),
                kind="pool" if pool else "generate",
                eos_token_ids=[EOS],
                cache_salt="salt" if special == "salt" else None,
                adapter="adapter" if special == "adapter" else None,
                media=[MediaItem(f"image-{priority}", 2, 5, "")] if special == "media" else [],
                priority=priority,
                session=session,
                agent=agent,
            )
            try:
                self.scheduler.add(message)
            except RequestError:
                continue
            self.live[req_id] = Tracked(message, expected_output(message, MAX_MODEL_LEN))

    @rule()
    def step(self):
        """What the engine does: plan, execute in order, commit up to `depth` - 1 steps late."""
        self.healthy = False
        plan = self.scheduler.schedule()
        if plan is not None:
            self.check_plan(plan)
            self.in_flight.append((plan, self.runner.execute(plan)))
        if self.in_flight and (plan is None or len(self.in_flight) >= self.depth):
            self.commit_oldest()
        self.healthy = True

    @rule(times=st.integers(2, 12))
    def several_steps(self, times):
        for _ in range(times):
            self.step()
            self.scheduler.check_integrity()

    @precondition(lambda self: self.in_flight)
    @rule()
    def commit_oldest(self):
        """Steps take what they take; now and then nobody has measured."""
        plan, result = self.in_flight.popleft()
        speed = self.chance.choice([0, 0.01, 0.8, 1, 1, 1, 1.2, 100])
        seconds = speed * (1e-4 + 1e-4 * plan.num_tokens) or None
        self.deliver(self.scheduler.commit(plan, result, seconds))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), right=st.integers(0, 3), wrong=st.integers(0, 2))
    def propose_and_step(self, data, right, wrong):
        for req_id in data.draw(st.sets(st.sampled_from(sorted(self.live)), min_size=1)):
            tracked = self.live[req_id]
            done = len(tracked.delivered)
            drafts = tracked.expected[done : done + right] + [VOCAB - 1] * wrong
            propose(self.scheduler, req_id, drafts)
        self.step()

    @rule(
        data=st.data(),
        what=st.sampled_from(
            ["abort", "hold", "release", "mute", "broken", "reset", "take_blocks", "give_blocks"]
        ),
    )
    def end_bulk_commits(self, data, what):
        if what == "reset":
            self.scheduler.reset_prefix_cache()
        elif what == "take_blocks":  # Something that is no request, as a loader from disk.
            tables = self.scheduler.kv.open("loader")
            if self.scheduler.kv.allocate(tables, data.draw(st.integers(1, 20))) is not None:
                self.holders.append(tables)
        elif what == "give_blocks" and self.holders:
            self.scheduler.kv.free(self.holders.pop())
        elif what == "release" and self.held:
            hold = data.draw(st.sampled_from(sorted(self.held)))
            self.held.discard(hold)
            self.scheduler.release(*hold)
        elif self.live:
            self.disturb_request(data, what, data.draw(st.sampled_from(sorted(self.live))))

    def disturb_request(self, data, what, req_id):
        if what == "abort":
            self.deliver(self.scheduler.abort([req_id, "unknown"]))
            assert req_id not in self.live
        elif what == "hold":
            reason = data.draw(st.sampled_from(["grammar", "blocks"]))
            self.scheduler.hold(req_id, reason)
            self.held.add((req_id, reason))
        elif what in ("mute", "broken") and req_id in self.runner.rows:
            getattr(self.runner, what).add(req_id)

    # --- What must hold.

    @invariant()
    def integrity(self):
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()

    def check_plan(self, plan: StepPlan):
        limits = self.scheduler.limits
        assert plan.num_tokens <= limits.max_num_batched_tokens
        assert plan.num_tokens > 0 or plan.encode
        assert len(shares(plan)) <= limits.max_num_reqs
        assert len({planned.req_id for planned in shares(plan)}) == len(shares(plan))
        held = {req_id for req_id, _ in self.held}
        assert held.isdisjoint(planned.req_id for planned in shares(plan))
        for planned in shares(plan):
            assert planned.num_computed_tokens + planned.num_tokens <= limits.max_model_len

    def deliver(self, deltas: list[RequestDelta]):
        for delta in deltas:
            tracked = self.live[delta.req_id]  # KeyError: a delta after the end
            assert (delta.num_cached_tokens is not None) == (
                tracked.deltas == 0 and delta.finish_reason not in ("abort", "error")
            )
            tracked.deltas += 1
            tracked.delivered += delta.token_ids
            assert tracked.delivered == tracked.expected[: len(tracked.delivered)]
            self.check_prompt_logprobs(tracked, delta)
            if delta.finish_reason is not None:
                self.check_finished(tracked, delta)
                del self.live[delta.req_id]
                self.held = {hold for hold in self.held if hold[0] != delta.req_id}
                self.runner.mute.discard(delta.req_id)
                self.runner.broken.discard(delta.req_id)

    def check_prompt_logprobs(self, tracked: Tracked, delta: RequestDelta):
        for entry in delta.prompt_logprobs or ():
            position = 0 if entry is None else -int(entry.logprob)
            assert position == tracked.prompt_logprobs
            tracked.prompt_logprobs += 1

    def check_finished(self, tracked: Tracked, delta: RequestDelta):
        if delta.finish_reason in ("abort", "error"):
            return
        assert tracked.delivered == tracked.expected
        if tracked.message.kind == "pool":
            assert delta.finish_reason == "stop" and delta.embedding is not None
            return
        if tracked.message.sampling.prompt_logprobs is not None:
            assert tracked.prompt_logprobs == len(tracked.message.prompt_token_ids)
        last = tracked.expected[-1] if tracked.expected else None
        stops = {5} if tracked.message.sampling.ignore_eos else {5, EOS}
        if delta.finish_reason == "stop":
            assert last in stops
            assert delta.stop_reason == (5 if last == 5 else None)
        else:
            assert delta.finish_reason == "length"

    def teardown(self):
        """Without interference everything ends, in few steps, and all blocks come back."""
        self.patch.stop()
        if not hasattr(self, "scheduler") or not self.healthy:
            return  # A failure that hypothesis is about to report.
        for tables in self.holders:
            self.scheduler.kv.free(tables)
        for hold in sorted(self.held):
            self.scheduler.release(*hold)
        self.held.clear()
        todo = sum(len(t.message.prompt_token_ids) + len(t.expected) for t in self.live.values())
        # A request with guesses waits for their result before its next plan.
        for _ in range(20 + 4 * todo * self.depth):
            if not self.live:
                break
            self.step()
            self.scheduler.check_integrity()
        assert not self.live, f"no end of {sorted(self.live)}"
        while self.in_flight:
            self.commit_oldest()
        assert not self.scheduler.has_work() and not self.scheduler.req_ids
        stats = self.scheduler.stats()
        assert stats.blocks_free == stats.blocks_total
        assert self.scheduler.reset_prefix_cache()
        self.scheduler.check_integrity()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
