"""The simulation can fail: it finds faults that are put into the code on purpose."""

import pytest

from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.scenario import scenario_of
from tests.simulation.test_simulation import SEEDS
from tests.simulation.world import play


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_fault_is_found(mutation: Mutation):
    with mutation():
        assert any(play(scenario_of(seed)).found for seed in range(SEEDS))
