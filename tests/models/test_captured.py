"""A decode step that is padded to a captured size gives what the step alone gives."""

import random
from types import SimpleNamespace

import pytest
import torch

from pagoda.runtime.steps.captured import CapturedSteps
from pagoda.runtime.steps.program import StepLimits
from tests.models import tiny
from tests.models.driver import Driver
from tests.models.test_program import MODELS, replay

SIZE = 6


def again(work):
    """A graph that computes its work once more."""
    return SimpleNamespace(replay=work)


def capture(driver: Driver, max_reqs: int, only: int | None = None) -> CapturedSteps:
    """All sizes, or a single one."""
    driver.model.reserve(64)
    cache = SimpleNamespace(layers=driver.caches, layer_group=driver.layer_group)
    has_states = len(set(driver.layer_group)) > 1
    limits = StepLimits(max_reqs, max_reqs, max_reqs, 64)
    steps = CapturedSteps(
        driver.model, cache, [driver.block_size], limits, has_states,
        torch.device(driver.caches[0][0].device), lambda: again, lambda: 0, 1,
    )  # fmt: skip
    if only is not None:
        steps.sizes = (only,)
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
    assert steps.sizes == (1, 2, 4, 6) and len(steps._graphs) == 4
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


def test_tokens_that_the_device_alone_knows(tmp_path):
    tiny.make("llama").save_pretrained(tmp_path)
    model = tiny.load(tmp_path)
    eager, padded = Driver(model), Driver(model)
    steps = capture(padded, 4, only=4)
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
