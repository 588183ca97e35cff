"""Steps of streams that are observed together leave what each of them would."""

import random

from pagoda.core.step_time import StepSize, StepTimes


def test_together_is_one_by_one():
    rng = random.Random(4)
    one, other = StepTimes(), StepTimes()
    for _ in range(60):
        tokens = float(rng.randint(1, 9))
        if rng.random() < 0.4:
            size, took = StepSize(tokens + 20, 900.0), rng.random() + 0.01
            one.observe(size, took)
            other.observe(size, took)
        first, count = tokens * rng.choice([1.0, 30.4, 120.5, 511.5]), rng.randint(1, 200)
        seconds = [rng.choice([0.01, 0.011, 3.0, 1e-5]) for _ in range(count)]
        for index, took in enumerate(seconds):
            one.observe(StepSize(tokens, first + index * tokens), took, True)
        other.observe_growing(StepSize(tokens, first), tokens, seconds)
        for decodes in (True, False):
            assert one.cost(decodes) == other.cost(decodes)
        assert one.shortest == other.shortest and one.wants_decode() == other.wants_decode()
