"""`bench host-overhead`: what the host does for a decode step, the device's work left out."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from pagoda.config.option import Options, option
from pagoda.core.messages import AddRequest, Deltas, StepOutputs
from pagoda.core.sampling import SamplingParams
from pagoda.engine.core import EngineCore

if TYPE_CHECKING:
    import torch

    from pagoda.layers.batch import ForwardBatch

_VOCAB, _BLOCK_SIZE, _PROMPT = 8, 16, 16
# Until every request decodes, and Python has seen every path.
_WARM_UP = 64
_CAPTURED_BYTES = 1 << 30
PARTS = ("plan", "launch", "commit", "send", "step")


@dataclass(frozen=True)
class HostOverheadConfig(Options):
    """How large the steps are, and how many."""

    requests: int = option(256, "Requests that decode together.", bounds=(1, 4096))
    steps: int = option(500, "Steps that are timed.", bounds=(1, 100_000))


def bench_host_overhead(config: HostOverheadConfig) -> dict[str, list[float]]:
    """Seconds of each step by part: planning it, launching it, committing the one before, packing
    what clients get, and all of it together."""
    core = _null_engine(config)
    taken: dict[str, list[float]] = {part: [] for part in PARTS}
    for owner, method, part in (
        (core.scheduler, "schedule", "plan"),
        (core.scheduler, "commit", "commit"),
        (core.executor, "execute", "launch"),
    ):
        setattr(owner, method, _timed(getattr(owner, method), taken[part]))
    encoder = msgspec.msgpack.Encoder()

    def send(deltas: Deltas) -> bytes:
        return encoder.encode(StepOutputs(deltas, core.stats()))

    timed_send = _timed(send, taken["send"])
    tokens = config.steps + 2 * _WARM_UP
    for number in range(config.requests):
        # Each step some requests are where one block ends and the next begins.
        prompt = [1] * (_PROMPT + number % _BLOCK_SIZE)
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        core.handle(AddRequest(req_id=f"r{number}", prompt_token_ids=prompt, sampling=sampling))
    step = _timed(lambda: timed_send(core.step()), taken["step"])
    # As the engine's process does behind its start.
    gc.collect()
    gc.freeze()
    for _ in range(_WARM_UP + config.steps):
        step()
    gc.unfreeze()
    core.shutdown()
    return {part: seconds[-config.steps :] for part, seconds in taken.items()}


def host_overhead_table(taken: dict[str, list[float]]) -> str:
    lines = ["| part   | mean us | p50 us | p90 us |", "|--------|--------:|-------:|-------:|"]
    for part, seconds in taken.items():
        p50, p90 = 1e6 * np.percentile(seconds, (50, 90))
        mean = 1e6 * np.mean(seconds)
        lines.append(f"| {part:<6} | {mean:7.0f} | {p50:6.0f} | {p90:6.0f} |")
    return "\n".join(lines)


def _timed(call: Callable[..., Any], taken: list[float]) -> Callable[..., Any]:
    @wraps(call)
    def timed(*args: Any) -> Any:
        begun = time.perf_counter()
        result = call(*args)
        taken.append(time.perf_counter() - begun)
        return result

    return timed


def _null_engine(config: HostOverheadConfig) -> EngineCore:
    """The engine of a device that runs ahead, replays captured steps, and has done everything at
    once."""
    import torch

    from pagoda.arch.spec import ModelSpec
    from pagoda.core.kvcache.manager import KVCacheManager
    from pagoda.core.kvcache.spec import KVGroupSpec
    from pagoda.core.scheduler import Scheduler, SchedulerLimits
    from pagoda.engine.executor import DeviceExecutor
    from pagoda.planner.captured import captured_sizes
    from pagoda.runtime.device import CpuDevice
    from pagoda.runtime.runner import ModelRunner
    from pagoda.runtime.steps.graphs import GraphMaker

    class NullGraph:
        """Computes when it is first replayed, for that is checked."""

        def __init__(self, work: Callable[[], None]):
            self._work = [work]

        def replay(self) -> None:
            while self._work:
                self._work.pop()()

    class NullDevice(CpuDevice):
        runs_ahead = True

        def graph_maker(self) -> Callable[[], GraphMaker]:
            return lambda: NullGraph

    class NullModel:
        def forward(self, batch: "ForwardBatch") -> "torch.Tensor":
            return hidden_states[: batch.num_tokens]

        def compute_logits(self, hidden_states: "torch.Tensor") -> "torch.Tensor":
            return logits[: len(hidden_states)]

        def reserve(self, max_model_len: int) -> None:
            pass

    longest = _PROMPT + _BLOCK_SIZE + config.steps + 2 * _WARM_UP
    budget = max(8192, config.requests)
    hidden_states, logits = torch.zeros(budget, 1), torch.zeros(config.requests, _VOCAB)
    group = KVGroupSpec("full", (0,), 1, 1, _BLOCK_SIZE, kv_dtype="float32")
    num_blocks = config.requests * (longest // _BLOCK_SIZE + 2)
    spec = ModelSpec("Null", _VOCAB, 1, (), 1e-5, True, longest, "float32", ())
    runner = ModelRunner(
        NullModel(),  # type: ignore[arg-type]  # of a model it has what steps use
        spec,
        [group],
        num_slabs=num_blocks,
        device=NullDevice(),
        max_num_reqs=config.requests,
        max_num_batched_tokens=budget,
        max_model_len=longest,
        captured_bytes=_CAPTURED_BYTES,
        captured_sizes=captured_sizes(config.requests),
    )
    runner.warm_up()
    limits = SchedulerLimits(config.requests, budget, longest)
    scheduler = Scheduler(limits, KVCacheManager([group], num_blocks))
    return EngineCore(scheduler, DeviceExecutor(runner))
