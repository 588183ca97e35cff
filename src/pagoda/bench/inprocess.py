"""An engine in this process, stepped by hand and timed. Tokenizing and detokenizing stay out."""

import itertools
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pagoda.base.errors import PagodaError
from pagoda.config.engine import EngineConfig
from pagoda.core.messages import AddRequest, Deltas, EngineProgress, EngineReady, EngineStats
from pagoda.core.sampling import SamplingParams
from pagoda.core.speculation.speculator import Speculator
from pagoda.engine.core import EngineCore
from pagoda.engine.executor import LocalExecutor
from pagoda.engine.start.progress import StartupDisplay
from pagoda.engine.startup import start_engine

if TYPE_CHECKING:
    from pagoda.runtime.runner import ModelRunner


class Passes(NamedTuple):
    steps: int
    kernel_seconds: float
    mask_seconds: float
    """What grammars took."""


class BenchEngine:
    """Runs batches of requests that generate exactly as many tokens as asked for."""

    def __init__(self, core: EngineCore, ready: EngineReady, seed: int = 0):
        self.ready = ready
        self._core = core
        self._ids = itertools.count()
        self._rng = random.Random(seed)

    @classmethod
    def start(cls, config: EngineConfig) -> "BenchEngine":
        """Load the model, with a bar on a terminal. Raises what loading raises."""
        display = StartupDisplay()

        def report(message: object) -> None:
            if isinstance(message, EngineProgress):
                display.update(message)

        try:
            core, ready = start_engine(config, report)
        finally:
            display.close()
        return cls(core, ready, config.model.seed)

    def random_prompt(self, length: int) -> list[int]:
        return self._rng.choices(range(self.ready.vocab_size), k=length)

    def run(
        self,
        prompts: Sequence[list[int]],
        output_tokens: Sequence[int],
        temperature: float = 0.0,
        progress: Callable[[int, int], None] | None = None,
        grammar: str | None = None,
        sampling: SamplingParams | None = None,
    ) -> float:
        """Seconds from the first request handed in to the last token of all.

        `sampling` is what requests ask for but for their length and temperature. `progress` is
        told how many requests are done, and of how many, whenever one ends.
        Raises PagodaError when the engine fails a request.
        """
        reqs = self._requests(prompts, output_tokens, temperature, grammar, sampling)
        finished = 0
        started = time.perf_counter()
        for deltas in self._steps(reqs):
            ended = sum(delta.finish_reason is not None for delta in deltas)
            finished += ended
            if ended and progress is not None:
                progress(finished, len(reqs))
        return time.perf_counter() - started

    def forward_passes(self) -> Passes:
        """What was computed so far."""
        times = self._runner().times
        return Passes(times.steps, times.seconds["forward"], times.seconds["masks"])

    def op_times(self, repeats: int = 100) -> dict[str, tuple[int, float]]:
        """The ops of the last step, computed again and again: calls of each kind of op, and the
        seconds of all of them together (median). Empty where steps run op by op, or as CUDA
        graphs."""
        from pagoda.runtime.steps.program import StepProgram

        program = self._runner().replays.program
        if not isinstance(program, StepProgram):
            return {}
        replays = [program.profile() for _ in range(repeats)]
        calls = Counter(name for name, _ in replays[0])
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for replay in replays:
            for name, values in seconds.items():
                values.append(sum(took for other, took in replay if other == name))
        return {name: (calls[name], statistics.median(seconds[name])) for name in calls}

    def _runner(self) -> "ModelRunner":
        # Loads torch, which must not be there before the engine has told OpenMP how to wait.
        from pagoda.runtime.runner import ModelRunner

        executor = self._core.executor
        assert isinstance(executor, LocalExecutor) and isinstance(executor.runner, ModelRunner)
        return executor.runner

    @property
    def speculator(self) -> Speculator | None:
        """What guesses tokens ahead."""
        return self._core.scheduler.speculator

    @speculator.setter
    def speculator(self, speculator: Speculator | None) -> None:
        self._core.scheduler.speculator = speculator

    def stats(self) -> EngineStats:
        return self._core.stats()

    def run_decode(
        self, prompts: Sequence[list[int]], output_tokens: Sequence[int], temperature: float = 0.0
    ) -> tuple[float, int]:
        """(seconds, tokens) from the moment that every request has a token to the last of all:
        decoding alone, where the prompts fit one step. Raises as `run` does.
        """
        reqs = self._requests(prompts, output_tokens, temperature)
        waiting = {req.req_id for req in reqs}
        started, tokens = 0.0, 0
        for deltas in self._steps(reqs):
            if not waiting:
                tokens += sum(len(delta.token_ids) for delta in deltas)
                continue
            waiting -= {delta.req_id for delta in deltas if delta.token_ids}
            started = time.perf_counter()
        return time.perf_counter() - started, tokens

    def steps(
        self, prompts: Sequence[list[int]], output_tokens: Sequence[int]
    ) -> Iterator[tuple[int, float]]:
        """(tokens generated, seconds) of each step until all is generated. Raises as `run` does."""
        started = time.perf_counter()
        for deltas in self._steps(self._requests(prompts, output_tokens, 0.0)):
            ended = time.perf_counter()
            yield sum(len(delta.token_ids) for delta in deltas), ended - started
            started = time.perf_counter()

    def finish_captures(self) -> None:
        """Do now what an engine does while it is idle."""
        while self._core.when_idle():
            pass

    def close(self) -> None:
        self._core.shutdown()

    def _requests(
        self,
        prompts: Sequence[list[int]],
        output_tokens: Sequence[int],
        temperature: float,
        grammar: str | None = None,
        sampling: SamplingParams | None = None,
    ) -> list[AddRequest]:
        sampling = sampling or SamplingParams()
        return [
            AddRequest(
                req_id=f"bench-{next(self._ids)}",
                prompt_token_ids=prompt,
                sampling=msgspec.structs.replace(
                    sampling,
                    temperature=temperature,
                    max_tokens=count,
                    ignore_eos=True,
                    detokenize=False,
                ),
                grammar=grammar,
            )
            for prompt, count in zip(prompts, output_tokens, strict=True)
        ]

    def _steps(self, reqs: Sequence[AddRequest]) -> Iterator[Deltas]:
        """What each step brings, until all requests are done."""
        running = {req.req_id for req in reqs}
        for req in reqs:
            self._core.handle(req)
        while running:
            deltas = self._core.step()
            for delta in deltas:
                if delta.error is not None:
                    raise PagodaError(f"A request failed: {delta.error}")
                if delta.finish_reason is not None:
                    running.discard(delta.req_id)
            yield deltas
