"""Guesses change nothing of what a model with recurrent layers says, down to the last bit."""

import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest

from pagoda.config.engine import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from pagoda.config.engine import SchedulerConfig as Scheduling
from pagoda.config.speculation import SpeculationConfig
from pagoda.core.messages import AddRequest, TokenLogprobs
from pagoda.core.sampling import SamplingParams
from pagoda.engine.core import EngineCore
from pagoda.engine.startup import start_engine
from pagoda.kernels import ops
from tests.engine.running import run
from tests.models import tiny
from tests.plans import propose

COUNT = 20
FAMILIES = {"qwen3_5": tiny.QWEN3_5, "lfm2": tiny.LFM2, "nemotron_h": tiny.NEMOTRON_H}
LENGTHS = [5, 17, 33, 50, 70, 90]
SAMPLING = [{"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.95, "seed": 3}]
pytestmark = pytest.mark.skipif(
    not ops.can_pack("cpu"), reason="the native kernels are not built here"
)


def request(name: str, prompt: list[int], count: int, kind: int) -> AddRequest:
    sampling = SamplingParams(**SAMPLING[kind], max_tokens=count, ignore_eos=True, logprobs=2)
    return AddRequest(req_id=name, prompt_token_ids=prompt, sampling=sampling)


@dataclass
class Reply:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def take(self, delta) -> None:
        self.tokens += delta.token_ids
        self.logprobs += delta.logprobs or []
        assert delta.finish_reason in (None, "length"), delta


def start(folder, slabs: int) -> EngineCore:
    config = EngineConfig(
        model=ModelConfig(str(folder), max_model_len=160),
        cache=CacheConfig(num_gpu_blocks_override=slabs),
        scheduler=Scheduling(max_num_batched_tokens=32, max_num_seqs=6),
        device=DeviceConfig("cpu", threads=1),
        speculation=SpeculationConfig({"method": "none"}),  # the tests guess
    )
    return start_engine(config, lambda message: None)[0]


@pytest.fixture(scope="module", params=FAMILIES)
def engines(request, tmp_path_factory):
    """(where all have room, where some are preempted)."""
    folder = tmp_path_factory.mktemp("model")
    tiny.make(request.param, **FAMILIES[request.param]).save_pretrained(folder)
    return start(folder, 120), start(folder, 24)


@pytest.fixture(scope="module")
def alone(engines) -> list[tuple[list[int], Reply, int]]:
    """Prompts, what the model says without guesses, and how that is drawn."""
    found = []
    for index, length in enumerate(LENGTHS):
        prompt, reply, kind = tiny.random_ids(length, seed=index), Reply(), index % 2
        for delta in run(engines[0], request("r", prompt, COUNT, kind))["r"]:
            reply.take(delta)
        found.append((prompt, reply, kind))
    engines[0].scheduler.reset_prefix_cache()
    return found


class Speculating:
    """Requests that guess in every step, by chance right or wrong."""

    def __init__(self, core: EngineCore, chance: random.Random):
        self.core, self.chance = core, chance
        self.expected: dict[str, Reply] = {}
        self.said: defaultdict[str, Reply] = defaultdict(Reply)
        self.left: set[str] = set()
        self.drafted = 0

    def add(self, name: str, prompt: list[int], reply: Reply, kind: int, done: int = 0) -> None:
        """Ask for what follows `done` tokens of a reply."""
        rest = Reply(reply.tokens[done:], reply.logprobs[done:])
        self.expected[name] = rest
        self.left.add(name)
        self.core.handle(request(name, prompt + reply.tokens[:done], len(rest.tokens), kind))

    def step(self) -> None:
        for name in sorted(self.left):
            right, wrong = self.chance.randint(0, 4), self.chance.choice([0, 0, 1, 2])
            done = len(self.said[name].tokens)
            good = self.expected[name].tokens[done : done + right]
            propose(self.core.scheduler, name, [*good, *self.chance.choices(range(200), k=wrong)])
        for delta in self.core.step():
            self.drafted += len(delta.token_ids) > 1
            self.said[delta.req_id].take(delta)
            if delta.finish_reason is not None:
                self.left.discard(delta.req_id)
        self.core.scheduler.check_integrity()

    def finish(self) -> None:
        while self.core.has_work():
            self.step()
        assert self.said == self.expected
        stats = self.core.stats()
        assert stats.blocks_free == stats.blocks_total


# Each count and seed in a pool of each size; all of them together in `make test-all`.
CASES = [
    pytest.param(
        count, tight, seed, marks=[] if seed == (index + 2 * tight) % 4 else pytest.mark.exhaustive
    )
    for index, count in enumerate((1, 2, 3, 6))
    for tight in (False, True)
    for seed in range(4)
]


@pytest.mark.parametrize(("count", "tight", "seed"), CASES)
def test_guesses_change_no_bit(engines, alone, count, tight, seed):
    """In batches, behind prompts in chunks, with requests that come, share prefixes with replies in
    the making, and are preempted right behind a verification."""
    core, chance = engines[tight], random.Random(seed)
    core.scheduler.reset_prefix_cache()
    run = Speculating(core, chance)
    chosen = chance.sample(range(len(alone)), count)
    for index in chosen[: 1 + count // 2]:
        run.add(f"r{index}", *alone[index])
    for _ in range(4):
        run.step()
    for index in chosen[1 + count // 2 :]:
        run.add(f"r{index}", *alone[index])
    for index in chosen:
        for _ in range(chance.randint(1, 3)):
            run.step()
        name = f"r{index}"
        done = len(run.said[name].tokens)
        event = chance.choice(["resume", "preempt", "nothing"])
        if event == "resume" and done < COUNT:
            run.add(f"again {name}", *alone[index], done)
        elif event == "preempt":
            core.scheduler.hold(name, "test")
            core.scheduler.release(name, "test")
    run.finish()


def test_guesses_are_accepted_in_one_step_each(engines, alone):
    """Right ones, or the tests above would show nothing."""
    run = Speculating(engines[0], random.Random(0))
    run.chance.randint = lambda low, high: high
    run.chance.choice = lambda options: options[0]
    before = engines[0].stats().num_steps
    run.add("r", *alone[0])
    run.finish()
    # A prompt of 5 tokens says its first one, then there are 5 a step.
    assert engines[0].stats().num_steps - before == 1 + 4
