"""How many guesses the runner is asked for, by what they cost and how often they come true."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.core.messages import AddRequest
from pagoda.core.plan import StepResult
from pagoda.core.speculation.chances import Chances
from pagoda.core.speculation.draft_pace import DraftPace
from pagoda.core.speculation.drafted import DraftedProposer
from pagoda.core.speculation.speculator import SpeculationLimits, Speculator
from tests.unit.core.fake_runner import add_request, expected_output, make_scheduler

SURE, DOUBTFUL = Chances([0.95] * 4), Chances([0.3] * 4)


def test_all_are_asked_for_until_their_time_is_known():
    assert DraftPace().best(DOUBTFUL, 1, 4e-3, 1e-3, 5) == 5


@pytest.mark.parametrize(
    ("chances", "each", "expected"),
    [(SURE, 1e-4, 8), (SURE, 5e-3, 0), (DOUBTFUL, 1e-4, 1), (DOUBTFUL, 2e-3, 0)],
)
def test_a_guess_is_worth_its_time_or_not(chances, each, expected):
    pace = DraftPace()
    pace.observe(4, 4 * each)
    assert pace.best(chances, 1, 4e-3, 2e-4, 8) == expected


def test_what_was_measured_fades():
    pace = DraftPace()
    pace.observe(2, 2.0)
    assert pace.best(SURE, 1, 4e-3, 2e-4, 8) == 0
    for _ in range(80):
        pace.observe(2, 2e-4)
    assert pace.best(SURE, 1, 4e-3, 2e-4, 8) == 8


@given(
    st.lists(st.floats(0.01, 0.99), min_size=1, max_size=6),
    st.integers(1, 20),
    st.floats(1e-4, 1e-1),
    st.floats(1e-6, 1e-2),
    st.floats(1e-6, 1e-2),
    st.integers(0, 8),
)
def test_no_other_number_is_better(chances, streams, seconds, row, each, most):
    pace = DraftPace()
    pace.observe(1, each)
    kinds = Chances(chances)

    def rate(count: int) -> float:
        tokens, chance = 1.0, 1.0
        for place in range(count):
            chance *= kinds.of(min(place, len(chances) - 1))
            tokens += chance
        return tokens / (seconds + count * (each + row * streams))

    found = pace.best(kinds, streams, seconds, row, most)
    assert 0 <= found <= most
    assert rate(found) >= max(map(rate, range(most + 1))) * (1 - 1e-12)


@pytest.mark.parametrize(("draft_seconds", "drafts"), [(1e-4, True), (2e-2, False)])
def test_a_runner_that_guesses_slowly_is_hardly_asked(draft_seconds, drafts):
    """Its guesses are all right, and each takes so long."""
    speculator = Speculator(DraftedProposer(), SpeculationLimits(4))
    scheduler, runner = make_scheduler(speculator=speculator, num_blocks=200)
    add_request(scheduler, "a", [1, 2, 3], max_tokens=100)
    (req,) = scheduler._requests.values()
    message: AddRequest = req.message
    said, asked, steps = expected_output(message, 128), 0, 0
    while scheduler.has_work():
        plan = scheduler.schedule()
        result: StepResult = runner.execute(plan)
        gained = len(result.tokens) + sum(len(entry.token_ids) for entry in result.results)
        done = len(req.token_ids) - req.prompt_len + gained
        result.drafts = {req.row: said[done : done + plan.num_drafts]} if plan.num_drafts else {}
        result.draft_seconds = plan.num_drafts * draft_seconds
        steps += 1
        asked += plan.num_drafts > 0
        scheduler.commit(plan, result, 3e-3 + 2e-4 * plan.num_tokens + result.draft_seconds)
    assert (steps < 50) is drafts
    assert drafts or asked < 15
