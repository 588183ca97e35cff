"""A decode step that is padded to a captured size gives what the step alone gives."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pagoda.layers.batch import StateInputs
from pagoda.planner.captured import CapturedSize, captured_sizes
from pagoda.runtime.sampling.head import OutputHead
from pagoda.runtime.steps.captured import Budget, CapturedSteps, model_pass
from pagoda.runtime.steps.program import StepLimits
from tests.models import tiny
from tests.models.driver import Driver
from tests.models.test_program import MODELS, replay
from tests.runtime.test_captured import plain

SIZE = 6


@pytest.fixture(autouse=True)
def one_thread():
    """How torch shares a product out to threads depends on its rows, and with that the sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def again(work):
    """A graph that computes its work once more."""
    return SimpleNamespace(replay=work)


def capture(driver: Driver, max_reqs: int, *only: CapturedSize, guesses=0) -> CapturedSteps:
    """All sizes, or some."""
    driver.model.reserve(64)
    cache = SimpleNamespace(layers=driver.caches, layer_group=driver.layer_group)
    has_states = len(set(driver.layer_group)) > 1
    sizes = captured_sizes(max_reqs, guesses, 2 * guesses)
    sizes = only or sizes
    most = max(size.tokens for size in sizes)
    limits = StepLimits(most, max_reqs, max(size.samples for size in sizes), 64)
    steps = CapturedSteps(
        model_pass(driver.model, OutputHead(driver.model)), cache, [driver.block_size], sizes,
        limits, has_states, torch.device(driver.caches[0][0].device), lambda: again, lambda: 0,
        Budget(1),
    )  # fmt: skip
    while steps.capture_more():
        pass
    return steps


@pytest.mark.parametrize("case", ["qwen3 moe", "gpt-oss", "gemma 4", "qwen3.5"])
def test_padded_steps_equal_eager_ones(case, tmp_path):
    family, changes = MODELS[case]
    tiny.make(family, **changes).save_pretrained(tmp_path)
    model = tiny.load(tmp_path)
    eager, padded = Driver(model), Driver(model)
    steps = capture(padded, SIZE)
    assert plain(steps.sizes) == [1, 2, 4, 6] and len(steps._graphs) == 4
    chance = random.Random(3)
    prompts = {f"r{i}": tiny.random_ids(3 + i, seed=i) for i in range(SIZE)}
    for driver in (eager, padded):
        driver.step(prompts)
    for _ in range(6):
        reqs = chance.sample(sorted(prompts), chance.randint(1, SIZE))
        step = {req: [chance.randrange(211)] for req in reqs}
        expected = torch.cat(list(eager.step(step).values()))
        assert steps.fits(len(reqs), len(reqs), len(reqs))
        logits, greedy = replay(steps, padded, step)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
        assert greedy.tolist() == expected.argmax(-1).tolist()


@pytest.mark.parametrize("case", ["qwen3 moe", "gpt-oss", "gemma 4", "qwen3.5"])
def test_padded_steps_with_guesses_equal_eager_ones(case, tmp_path):
    family, changes = MODELS[case]
    tiny.make(family, **changes).save_pretrained(tmp_path)
    model = tiny.load(tmp_path)
    eager, padded = Driver(model), Driver(model)
    steps = capture(padded, 4, guesses=4)
    assert len(steps._graphs) == len(steps.sizes) > 6
    chance = random.Random(4)
    prompts = {f"r{i}": tiny.random_ids(3 + i, seed=i) for i in range(4)}
    for driver in (eager, padded):
        driver.step(prompts)
    lengths = [5, 1, 3, 2, 1, 4]
    for turn in range(6):
        reqs = chance.sample(sorted(prompts), chance.randint(1, 3))
        step = {
            req: tiny.random_ids(lengths[(turn + i) % 6] if i < 2 else 1, seed=turn)
            for i, req in enumerate(reqs)
        }
        expected = torch.cat(list(eager.step(step).values()))
        assert steps.fits(len(expected), len(reqs), len(expected))
        logits, greedy = replay(steps, padded, step, {req: len(ids) for req, ids in step.items()})
        # Delta nets take steps with guesses token by token, the eager ones here by chunks.
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
        assert greedy.tolist() == expected.argmax(-1).tolist()


@pytest.mark.parametrize("case", ["qwen3 moe", "gpt-oss", "gemma 4", "qwen3.5"])
def test_padded_steps_with_prompts_equal_eager_ones(case, tmp_path):
    """New prompts, chunks of them that end nowhere, and streams, in any order."""
    family, changes = MODELS[case]
    tiny.make(family, **changes).save_pretrained(tmp_path)
    model = tiny.load(tmp_path)
    eager, padded = Driver(model), Driver(model)
    sizes = [CapturedSize(reqs, tokens, prompts=True) for reqs, tokens in ((2, 8), (5, 8), (5, 20))]
    steps = capture(padded, 5, *sizes)
    chance, reqs = random.Random(6), [f"r{i}" for i in range(5)]
    for turn in range(8):
        chosen = chance.sample(reqs, chance.randint(1, 4))
        step = {
            req: tiny.random_ids(chance.randint(2, 9) if i == turn % len(chosen) else 1, seed=turn)
            for i, req in enumerate(chosen)
        }
        expected = torch.stack([rows[-1] for rows in eager.step(step).values()])
        tokens = sum(map(len, step.values()))
        assert steps.fits(tokens, len(step), len(step))
        logits, greedy = replay(steps, padded, step)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
        assert greedy.tolist() == expected.argmax(-1).tolist()
    assert len(steps._graphs) == 3


class Guessing(Driver):
    """Keeps the states behind guesses, and takes back those that were wrong."""

    def __init__(self, model):
        super().__init__(model)
        self.guesses: dict[str, int] = {}
        self.behind: dict[str, list[int]] = {}

    def _states(self, tokens):
        found, end = super()._states(tokens), 0
        for req, ids in tokens.items():
            end += len(ids)
            kept = [self.slots[req]]
            kept += [self.free_slots.pop() for _ in range(self.guesses.get(req, 0))]
            found.write[end - len(kept) : end] = torch.tensor(kept, dtype=torch.int32)
            self.slots[req], self.behind[req] = kept[-1], kept
        return replace(found, drafts=any(self.guesses.values()))

    def reject(self, req: str, count: int) -> None:
        self.lens[req] -= count
        self.slots[req] = self.behind[req].pop(-1 - count)
        self.free_slots += self.behind.pop(req)


def test_prompts_beside_guesses_keep_the_states_behind_these(tmp_path):
    family, changes = MODELS["qwen3.5"]
    tiny.make(family, **changes).save_pretrained(tmp_path)
    model = tiny.load(tmp_path)
    eager, padded = Guessing(model), Guessing(model)
    size = CapturedSize(6, 24, prompts=True)
    steps = capture(padded, 6, CapturedSize(1, 5), size)
    (states,) = (group for group in steps._batches[size].groups if isinstance(group, StateInputs))
    assert states.drafts
    for driver in (eager, padded):
        driver.step({"a": [1, 2, 3], "b": [4, 5]})
    chance = random.Random(8)
    for turn in range(6):
        step = {
            "a": tiny.random_ids(3, seed=turn),
            "b": tiny.random_ids(2, seed=10 + turn),
            f"p{turn}": tiny.random_ids(9, seed=20 + turn),
        }
        sampled = {"a": 3, "b": 2}
        eager.guesses = padded.guesses = {"a": 2, "b": 1}
        parts = eager.step(step)
        expected = torch.cat([rows[-sampled.get(req, 1) :] for req, rows in parts.items()])
        assert steps.fits(14, 3, 6)
        logits, _ = replay(steps, padded, step, sampled)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
        for req, guessed in eager.guesses.items():
            wrong = chance.randint(0, guessed)
            eager.reject(req, wrong)
            padded.reject(req, wrong)


def test_tokens_that_the_device_alone_knows(tmp_path):
    tiny.make("llama").save_pretrained(tmp_path)
    model = tiny.load(tmp_path)
    eager, padded = Driver(model), Driver(model)
    steps = capture(padded, 4, CapturedSize(4, 4))
    prompts = {"a": [1, 2, 3], "b": [4, 5]}
    tokens = {req: rows[-1].argmax().item() for req, rows in eager.step(prompts).items()}
    padded.step(prompts)
    expected = torch.cat(list(eager.step({req: [id] for req, id in tokens.items()}).values()))
    known = torch.tensor(list(tokens.values()))
    run = steps.run
    steps.run = lambda arrays, samples: run(arrays, samples, lambda ids: ids.copy_(known))
    logits, greedy = replay(steps, padded, {"a": [0], "b": [0]})
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    steps.run = run
    replay(steps, padded, {"a": [7], "b": [8]})
    assert greedy.tolist() == expected.argmax(-1).tolist()  # not those of the next step


@pytest.mark.parametrize(("requests", "tokens"), [(8, 4), (2, 64), (8, 64)])
def test_what_is_captured_of_prompts_is_checked(requests, tokens, tmp_path):
    """With fewer tokens than requests, and with more than the first block of these holds: what the
    rows of nobody store, in any order, is nothing that a request reads."""
    tiny.make("llama").save_pretrained(tmp_path)
    size = CapturedSize(requests, tokens, True)
    steps = capture(Driver(tiny.load(tmp_path)), 8, size)
    assert steps.captured == [size]
    arrays = steps._first_tokens(size)
    count = arrays.query_start[-1]
    assert arrays.num_tokens == tokens and len(arrays.kv_lens) == requests
    for group in arrays.groups:
        assert not set(group.slot_mapping[:count]) & set(group.slot_mapping[count:])
