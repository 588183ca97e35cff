"""What steps take, of an engine whose steps take a known time."""

from types import SimpleNamespace

import pytest

from pagoda.base.errors import ConfigError
from pagoda.bench.step_times import StepTimesConfig, step_times
from pagoda.planner.devices.step_table import StepPoint, StepProfile, read_profile, write_profile

CONFIG = StepTimesConfig(requests=3, prompt_tokens=4, context=64, steps=4, rounds=2)


class Engine:
    """A step takes a second for each token it computes and 1/64 for each key of its first request;
    prompts start one a step, and what was read of one is kept."""

    def __init__(self, seats=8, budget=1000):
        self.seats, self.budget = seats, budget
        self.num_steps = self.prompts = 0
        self.kept = {()}

    def random_prompt(self, length):
        self.prompts += 1
        return [self.prompts] * length

    def stats(self):
        return SimpleNamespace(num_steps=self.num_steps)

    def run(self, prompts, output_tokens):
        (prompt,), (count,) = prompts, output_tokens
        assert count == 1
        known = max((len(one) for one in self.kept if tuple(prompt[: len(one)]) == one), default=0)
        self.kept.add(tuple(prompt))
        missing = len(prompt) - known
        self.num_steps += -(-missing // self.budget)
        return missing + len(prompt) / 64

    def steps(self, prompts, output_tokens):
        left = list(output_tokens)
        for step in range(100):
            runs = [i for i in range(min(step + 1, len(left), self.seats)) if left[i]]
            if not runs:
                return
            for i in runs:
                left[i] -= 1
            # The first step beside others reads a prompt, and takes long.
            yield len(runs), 1000.0 if step < len(prompts) else len(runs) + len(prompts[0]) / 64


def test_steps_of_each_size():
    seen = []
    points = step_times(Engine(), CONFIG, lambda *at: seen.append(at))
    assert seen == [(done, 20) for done in range(1, 21)]
    # 4 + 8 steps of each request, less those in which others start.
    middle = {1: 12 / 2, 2: 11 / 2, 3: 10 / 2}
    assert points == [
        *(
            StepPoint("decode", count, behind + 1 + middle[count], count + behind / 64)
            for count in (1, 2, 3)
            for behind in (32, 64)
        ),
        *(
            StepPoint("prompt", tokens, behind + (tokens + 1) / 2, tokens + (behind + tokens) / 64)
            for tokens in (2, 4)
            for behind in (0, 64)
        ),
    ]


def test_what_is_no_step_of_that_size_is_said():
    for engine, flag in (
        (Engine(seats=2), "--max-num-seqs"),
        (Engine(budget=3), "--prompt-tokens"),
    ):
        with pytest.raises(ConfigError, match=flag):
            step_times(engine, CONFIG, lambda done, total: None)


def test_a_profile_is_read_back(tmp_path):
    profile = StepProfile(
        "m", "cpu", [StepPoint("decode", 1, 2.0, 0.5), StepPoint("prompt", 2, 1.5, 1)]
    )
    write_profile(tmp_path / "profile.json", profile)
    assert read_profile(tmp_path / "profile.json") == profile
