"""Engines on the same cores, and what a server adds: by hand, and leaps beside single steps."""

from dataclasses import replace

import pytest

from pagoda.base.errors import ConfigError
from pagoda.planner.devices.step_table import Beside, Served, StepPoint, StepProfile
from pagoda.simulate.sharing import Pace, Sharing
from pagoda.simulate.traces import MadeUp, Recorded, UsersConfig
from pagoda.simulate.world import Fleet, simulate
from tests.unit.simulate.test_simulated_replicas import TABLE, UNEVEN, arrival, machine

TWICE = Beside(2, 2.0, 2.0)
POINTS = [StepPoint("decode", 1, 1.0, 1.0), StepPoint("prompt", 2, 1.5, 1.0)]


def test_two_engines_by_hand():
    """Each reads 32 tokens, which takes 4 s alone and twice as long beside another. The first has 2
    of its seconds left when the second comes at 2 s, so it ends at 6 s; the second has done 2 of
    its 4 by then, and ends at 8 s."""
    device = replace(machine(), sharing=Sharing(2, 1, (TWICE,)), engines=2)
    trace = Recorded([arrival(0.0, 32, 1), arrival(2.0, 32, 1, 1)])
    made = simulate(trace, Fleet(device, 2, "round-robin"))
    assert made.records.ttft.tolist() == [6.0, 6.0]
    apart = simulate(trace, Fleet(replace(device, engines=1), 2, "round-robin"))
    assert apart.records.ttft.tolist() == [4.0, 4.0]


def test_a_server_by_hand():
    """On one core each second of the server's is missed by the engine. The prompt takes 0.5 s to
    get there, 4 + 0.25 in its step and 0.375 of the server; each token behind it 1 + 0.25 +
    0.125."""
    served = Served(request=0.5, step=0.25, token_cpu=0.125, request_cpu=0.25)
    device = replace(machine(), sharing=Sharing(1, 1, (), served))
    trace = Recorded([arrival(1.0, 32, 3)])
    for leaps in (True, False):
        records = simulate(trace, Fleet(device), leaps=leaps).records
        assert records.ttft.tolist() == [5.125]
        assert records.e2e.tolist() == [5.125 + 2 * 1.375]


def test_a_free_core_is_the_servers():
    sharing = Sharing(2, 1, (TWICE,), Served(token_cpu=1.0))
    assert [sharing.pace(busy) for busy in (0, 1, 2)] == [
        Pace(), Pace(), Pace(2.0, 2.0, 1.0),
    ]  # fmt: skip
    assert Sharing().pace(1) == Pace()


def test_a_request_waits_for_a_core():
    """Alone it takes 0.5 s to get to its engine. The second one comes while two threads compute on
    two cores, takes turns with them, and needs half as long again."""
    sharing = Sharing(2, 2, (TWICE,), Served(request=0.5))
    assert [sharing.delay(busy) for busy in (0, 1, 2)] == [0.5, 0.75, 1.25]
    device = replace(machine(), sharing=sharing, engines=2)
    trace = Recorded([arrival(0.0, 32, 1), arrival(1.0, 32, 1, 1)])
    made = simulate(trace, Fleet(device, 2, "round-robin"))
    # 2.75 s of its 4 are left of the first when the second joins it.
    assert made.records.ttft.tolist() == [1.75 + 2 * 2.75, 0.75 + 2 * 2.75 + 4 - 2.75]


@pytest.mark.parametrize("in_flight", [1, 2])
def test_leaping_is_stepping(in_flight):
    users = UsersConfig(
        users=30, request_rate=3.0, input_len=60, output_len=150, range_ratio=0.8, turns=2
    )
    served = Served(0.03, 0.001, 0.0007, 0.006)
    sharing = Sharing(2, 1, (Beside(2, 1.1, 1.25), Beside(3, 1.7, 1.6)), served)
    device = replace(
        machine(UNEVEN, max_num_reqs=8), sharing=sharing, engines=3, steps_in_flight=in_flight
    )
    one, other = (
        simulate(MadeUp(users), Fleet(device, 3, "least-loaded"), leaps=leaps)
        for leaps in (False, True)
    )
    for name in ("ttft", "tpot", "e2e", "kv_shares"):
        assert getattr(one.records, name) == getattr(other.records, name), name
    assert (one.steps, one.busy, one.records.completed) == (other.steps, other.busy, 60)
    alone = simulate(MadeUp(users), Fleet(replace(device, engines=1), 3, "least-loaded"))
    assert alone.records.mean("tpot") < one.records.mean("tpot")


def test_a_profile_that_knows_fewer_engines():
    profile = StepProfile("m", "cpu", POINTS, cores=2, threads=1, beside=[TWICE])
    assert Sharing.of(profile, 2).beside == (TWICE,)
    with pytest.raises(ConfigError, match="step-times --data-parallel-size 3"):
        Sharing.of(profile, 3)


def test_many_steps_take_what_each_takes():
    for table in (UNEVEN, TABLE):
        for requests in (1, 3, 8, 11):
            pairs = requests * 7.0
            each = [table.decode_seconds(requests, pairs + requests * i) for i in range(1200)]
            assert table.decodes_seconds(requests, pairs, 1200).tolist() == each
