"""Replicas in several processes, beside all of them in one."""

from collections import Counter
from dataclasses import replace

import pytest

from pagoda.simulate.apart import are_apart, simulate_apart
from pagoda.simulate.report import as_json
from pagoda.simulate.traces import MadeUp, Recorded, UsersConfig
from pagoda.simulate.world import Fleet, simulate
from tests.unit.simulate.test_simulated_replicas import UNEVEN, arrival, machine

USERS = UsersConfig(users=70, request_rate=20.0, input_len=60, output_len=150, range_ratio=0.8)


@pytest.mark.parametrize("replicas", [2, 5])
def test_several_processes_find_what_one_finds(replicas):
    """Of five replicas one process has three and the other two."""
    fleet = Fleet(machine(UNEVEN, num_slabs=60), replicas)
    for trace in (MadeUp(USERS), Recorded([*MadeUp(USERS), arrival(0.7, 2000, 3, 10**6)])):
        one, other = simulate(trace, fleet), simulate_apart(trace, fleet, processes=2)
        assert as_json(one, [], 2.0) == as_json(other, [], 2.0)
        for name in ("ttft", "tpot", "e2e", "kv_shares", "came", "left"):
            assert sorted(getattr(one.records, name)) == sorted(getattr(other.records, name)), name
        gaps = [
            Counter(zip(r.gaps, r.gap_counts, strict=True)) for r in (one.records, other.records)
        ]
        assert gaps[0] == gaps[1]
        assert one.records.most_at_once() == other.records.most_at_once() > replicas
        assert one.records.refusal == other.records.refusal
    assert "maximum context length" in one.records.refusal[1]


def test_whose_requests_depend_on_others_is_not_apart():
    fleet, users = Fleet(machine(), 2), MadeUp(USERS)
    assert are_apart(users, fleet)
    assert not are_apart(MadeUp(replace(USERS, turns=2)), fleet)
    assert not are_apart(users, replace(fleet, router="least-loaded"))
    assert not are_apart(users, replace(fleet, replicas=1))
    assert not are_apart(users, replace(fleet, machine=replace(machine(), engines=2)))


def test_progress_is_told():
    told = []
    simulate(MadeUp(replace(USERS, users=130)), Fleet(machine(UNEVEN)), progress=told.append)
    assert told == [64, 128]


def test_fewer_requests_than_processes():
    trace, fleet = Recorded([arrival(1.0, 32, 3)]), Fleet(machine(), 3)
    found = simulate_apart(trace, fleet, processes=3)
    assert as_json(found, [], None) == as_json(simulate(trace, fleet), [], None)
    assert found.records.duration == 6.0
