"""Steps launched before the last one's tokens are seen give what one after the other gives."""

import random

import numpy as np
import pytest

from pagoda.core.grammar import Grammars, Vocabulary
from pagoda.runtime.device import CpuDevice
from tests.runtime.conftest import POISON, Driver

EOS = 256
NUMBERS = 'start: /[0-9]{1,40}/ ("," /[0-9]{1,40}/)*\n'
KINDS = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.9, "top_p": 0.9, "seed": 1},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 1.5},
    "rules": {"temperature": 0.8, "seed": 2, "bad_word_ids": [[7, 8], [9]], "min_tokens": 9,
              "eos_token_ids": [11]},
    "reports": {"temperature": 0.7, "seed": 3, "logprobs": 2},
    "prompt": {"temperature": 0.0, "prompt_logprobs": 1},
}  # fmt: skip


class LateDevice(CpuDevice):
    """Shows what was computed only to who waits for it."""

    runs_ahead = True

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def fetch(self, *tensors):
        copies = [tensor.clone().numpy() for tensor in tensors]

        def wait():
            self.waits += 1
            return copies

        return wait


class AheadDriver(Driver):
    """Launches each step before it asks for the result of the one before."""

    pending = None

    def execute(self, plan):
        requests = {req_id: self.requests[req_id] for req_id in plan.req_ids}
        before, self.pending = self.pending, (plan, requests, self.runner.launch(plan))
        self._take(before)
        return {}

    def step(self, shares, drafts=None):
        if drafts:  # Where a request goes on depends on how many of them are accepted.
            self.settle()
        super().step(shares, drafts)
        if drafts:
            self.settle()
        return {}

    def settle(self):
        before, self.pending = self.pending, None
        self._take(before)

    def _take(self, pending):
        if pending is None:
            return
        plan, requests, wait = pending
        result = wait()
        # What a namesake that is gone has generated is nobody's.
        mine = [req_id for req_id, request in requests.items()
                if self.requests[req_id] is request]  # fmt: skip
        tokens = {req_id: list(self.tokens[req_id]) for req_id in requests if req_id not in mine}
        self.take_up(plan, result)
        self.tokens.update(tokens)


@pytest.fixture
def ahead(make_runner):
    def make(**changes):
        return AheadDriver(make_runner(device=LateDevice(), **changes))

    return make


def play(driver: Driver, make_request, kinds=tuple(KINDS), events=120) -> dict[str, list[int]]:
    """Arrivals, departures (ids come back), preemptions, chunks and drafts, in one order."""
    chance = random.Random(11)
    waiting = [name for name in kinds for _ in range(3)]
    chance.shuffle(waiting)
    alive: list[str] = []
    for _ in range(events):
        event = chance.random()
        if (event < 0.2 or not alive) and waiting:
            name = waiting.pop()
            if name in alive:
                driver.free(name)
                alive.remove(name)
            driver.add(make_request(name, chance.randint(5, 60), **KINDS[name]))
            alive.append(name)
        elif event < 0.27:
            driver.preempt(chance.choice(alive))
        elif event < 0.32 and len(alive) > 1:
            driver.free(alive.pop(chance.randrange(len(alive))))
        drafts = {alive[0]: [1, 2]} if 0.32 < event < 0.37 else None
        chosen = alive if event < 0.8 else chance.sample(alive, chance.randint(1, len(alive)))
        driver.step({name: chance.choice([4, 64]) for name in chosen}, drafts)
    return driver.tokens


def test_everything_at_once(make_driver, ahead, make_request):
    expected = play(make_driver(), make_request)
    driver = ahead()
    found = play(driver, make_request)
    driver.settle()
    assert set(found) == set(KINDS)
    assert found == expected
    assert sum(map(len, found.values())) > 100


def test_a_run_of_decode_steps_waits_for_nothing(make_driver, ahead, make_request):
    requests = [make_request(f"r{i}", 10 + i, temperature=0.5, seed=i) for i in range(4)]
    expected, driver = make_driver(), ahead()
    for one in (expected, driver):
        one.add(*requests)
        for _ in range(30):
            one.step(dict.fromkeys([f"r{i}" for i in range(4)], 64))
    assert driver.runner._step.follows, "each step was made from the last one"
    assert driver.runner.device.waits == 29, "each step was asked for once, one late"
    driver.settle()
    assert driver.tokens == expected.tokens


def test_reports_come_with_the_same_values(make_driver, ahead, make_request):
    expected, driver = make_driver(), ahead()
    for one in (expected, driver):
        one.add(make_request("a", logprobs=3, temperature=0.0))
        one.add(make_request("b", prompt_logprobs=2, temperature=0.0))
        for _ in range(5):
            one.step({"a": 64, "b": 64})
    driver.settle()
    for name in "ab":
        assert driver.results[name] == expected.results[name]


def test_grammars_see_every_token(make_driver, ahead, make_request):
    tokens = [bytes([byte]) for byte in range(256)] + [b"<eos>"]
    vocabulary = Vocabulary(tokens, [EOS], [EOS], lambda text: list(text.encode()))
    grammars = Grammars(lambda: vocabulary, 300)
    found = []
    for driver in (make_driver(grammars=grammars), ahead(grammars=grammars)):
        numbers = make_request("numbers", temperature=0.9, seed=4, eos_token_ids=[EOS])
        numbers.grammar = NUMBERS
        driver.add(numbers, make_request("free", temperature=0.9, seed=5))
        for _ in range(12):
            driver.step({"numbers": 64, "free": 64})
        found.append(driver)
    found[1].settle()
    assert set(bytes(found[0].tokens["numbers"]).decode()) <= set("0123456789,")
    assert found[1].tokens == found[0].tokens


def test_a_fault_is_told_with_the_result_and_stays(ahead, make_request):
    driver = ahead()
    driver.add(make_request("good", temperature=0.0))
    driver.add(make_request("bad", prompt_token_ids=[1, POISON, 2], temperature=0.0))
    for _ in range(3):
        driver.step({"good": 64, "bad": 64})
    driver.settle()
    assert len(driver.tokens["good"]) == 3 and not driver.tokens["bad"]
    assert all("not a number" in result.error for result in driver.results["bad"])
    driver.free("bad")
    driver.add(make_request("bad", temperature=0.0))
    driver.step({"good": 64, "bad": 64})
    driver.settle()
    assert len(driver.tokens["bad"]) == 1, "a namesake has no fault"


def test_a_late_token_never_lands_in_the_next_request_of_its_row(make_driver, ahead, make_request):
    driver, alone = ahead(max_num_reqs=1), make_driver()
    driver.add(make_request("first", 30, temperature=0.0))
    driver.step({"first": 64})
    driver.free("first")
    second = make_request("second", 31, temperature=0.0)
    for one in (driver, alone):
        one.add(second)
        for _ in range(4):
            one.step({"second": 64})
    driver.settle()
    row = driver.runner.states.token_ids[0]
    assert np.array_equal(row[:31], second.prompt_token_ids)
    assert driver.tokens["second"] == alone.tokens["second"]


def test_a_late_token_of_a_request_that_left_counts_for_nobody(ahead, make_request):
    driver = ahead()
    repeats = {"temperature": 0.0, "frequency_penalty": 1.0}
    driver.add(make_request("left", **repeats), make_request("stays", **repeats))
    driver.step({"left": 64, "stays": 64})
    driver.free("left")
    driver.step({"stays": 64})
    driver.settle()
    assert len(driver.tokens["stays"]) == 2 and not driver.runner.states.counts.keys() - {1}
