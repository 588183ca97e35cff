"""Plays sessions of agents against the scheduler, the model left out: how much of their prompts is
computed again."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pagoda.bench.agents.trace import END_OF_TURN, Agent, TraceConfig, Turn, make_sessions
from pagoda.core.kvcache.block_hash import BlockHashes
from pagoda.core.messages import AddRequest
from pagoda.core.plan import RequestResult, StepPlan, StepResult
from pagoda.core.sampling import SamplingParams
from pagoda.core.scheduler import Scheduler


@dataclass
class Outcome:
    """Tokens of all prompts."""

    prompt: int = 0
    computed: int = 0
    again: int = 0
    """Those of them that had been computed before, behind the same beginning."""

    @property
    def share_again(self) -> float:
        return self.again / max(1, self.prompt)


@dataclass
class Player:
    """The client of all agents, and the model: it says what the trace says."""

    trace: TraceConfig
    make: Callable[[], Scheduler]
    """The engine's scheduler, as it is after a start."""
    stop: Callable[[Scheduler], object] = lambda scheduler: None
    """Called before the engine is started again, once, in the middle of the trace."""
    execute: Callable[[StepPlan], object] = lambda plan: None
    """Sees each plan, before its result."""
    parallel: int = 4
    """Requests at once."""
    with_keys: bool = True
    """Requests say which session and agent they are of."""
    heard: Callable[[int, int], object] = lambda done, total: None
    """Told after each request how many are done, of how many."""
    outcome: Outcome = field(default_factory=Outcome)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.trace.seed)
        self._scheduler = self.make()
        self._block_size = self._scheduler.kv.block_size
        self._known: set[bytes] = set()
        """Hashes of all blocks that were ever computed."""
        self._idle: list[Agent] = make_sessions(self.trace)
        self._turns_done: dict[str, int] = {}
        self._waits: dict[str, tuple[Agent, int]] = {}
        """By session, the main agent that waits for so many subagents."""
        self._running: dict[str, tuple[Agent, Turn]] = {}
        self._num_started = self._num_done = 0

    def play(self) -> Outcome:
        """From the first request to the last one; the engine is started again in the middle, and
        stopped in the end."""
        middle = self._num_requests // 2
        restarted = False
        while self._idle or self._running:
            may_start = restarted or self._num_started < middle
            while may_start and self._idle and len(self._running) < self.parallel:
                self._start(self._idle.pop(self._rng.randrange(len(self._idle))))
            if not may_start and not self._running:
                self.stop(self._scheduler)
                self._scheduler = self.make()
                restarted = True
            elif self._running:
                self._step()
        self.stop(self._scheduler)
        return self.outcome

    @property
    def _num_requests(self) -> int:
        trace = self.trace
        delegated = trace.delegations * trace.subagents * trace.subagent_turns
        return trace.sessions * (trace.turns + delegated)

    def _start(self, agent: Agent) -> None:
        turn = next(agent.turns, None)
        if turn is None:
            self._end(agent)
            return
        self._num_started += 1
        req_id = f"{agent.session}/{agent.name}/{self._num_started}"
        self._running[req_id] = (agent, turn)
        request = AddRequest(
            req_id=req_id,
            prompt_token_ids=turn.prompt,
            sampling=SamplingParams(max_tokens=len(turn.reply)),
            eos_token_ids=[END_OF_TURN],
            session=agent.session if self.with_keys else None,
            agent=agent.name if self.with_keys else None,
        )
        self._scheduler.add(request)

    def _end(self, agent: Agent) -> None:
        """An agent has done its last turn."""
        if agent.name is None:
            return
        main, left = self._waits[agent.session]
        self._waits[agent.session] = (main, left - 1)
        if left == 1:
            self._idle.append(main)

    def _step(self) -> None:
        plan = self._scheduler.schedule()
        assert plan is not None, "the scheduler stands still"
        self.execute(plan)
        for delta in self._scheduler.commit(plan, self._result(plan)):
            if delta.num_cached_tokens is not None:
                self._count(self._running[delta.req_id][1].prompt, delta.num_cached_tokens)
            if delta.finish_reason is not None:
                self._finish(*self._running.pop(delta.req_id))

    def _result(self, plan: StepPlan) -> StepResult:
        """The replies' next tokens."""
        ends = (plan.starts + plan.lens).tolist()
        tokens: list[int] = []
        results: list[RequestResult] = []
        for req_id, row, end in zip(plan.req_ids, plan.rows.tolist(), ends, strict=True):
            turn = self._running[req_id][1]
            samples = row not in plan.unsampled
            token = [turn.reply[end - len(turn.prompt)]] if samples else []
            tokens += token
            results.append(RequestResult(req_id=req_id, token_ids=token))
        if len(tokens) == len(results):
            return StepResult(step_id=plan.step_id, tokens=tokens)
        return StepResult(step_id=plan.step_id, results=results)

    def _count(self, prompt: Sequence[int], num_cached: int) -> None:
        size = self._block_size
        num_known = 0
        for block_hash in self._hashes(prompt):
            if block_hash not in self._known:
                break
            num_known += size
        self.outcome.prompt += len(prompt)
        self.outcome.computed += len(prompt) - num_cached
        # The last token is always computed, for what follows it.
        self.outcome.again += max(0, min(num_known, len(prompt) - 1) - num_cached)

    def _finish(self, agent: Agent, turn: Turn) -> None:
        self._known.update(self._hashes([*turn.prompt, *turn.reply[:-1]]))
        self._num_done += 1
        self.heard(self._num_done, self._num_requests)
        if agent.name is not None:
            self._idle.append(agent)
            return
        done = self._turns_done[agent.session] = self._turns_done.get(agent.session, 0) + 1
        subagents = agent.subagents.get(done, [])
        if subagents:
            self._waits[agent.session] = (agent, len(subagents))
            self._idle += subagents
        else:
            self._idle.append(agent)

    def _hashes(self, tokens: Sequence[int]) -> list[bytes]:
        size = self._block_size
        return BlockHashes(size).extend(tokens, len(tokens) // size)
