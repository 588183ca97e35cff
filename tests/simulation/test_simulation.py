"""300 seeds of the whole: client, wire, engine, scheduler, cache, fleet and HTTP in virtual time.

Each stream is exact, or an exact prefix and one error; nothing waits for ever; what requests take
is given back; metrics add up.
"""

import os
import subprocess
import sys

import pytest

from tests.simulation.model import expected
from tests.simulation.run import run_seeds, shrunk, still_fails, story
from tests.simulation.scenario import scenario_of
from tests.simulation.world import play

SEEDS, _CHUNK = 300, 25


@pytest.mark.parametrize("first", range(0, SEEDS, _CHUNK))
def test_nothing_is_found(first):
    failures = run_seeds(range(first, first + _CHUNK)).failures
    for seed in failures:
        pytest.fail(
            f"{len(failures)} seeds failed: {sorted(failures)}\n{story(play(scenario_of(seed)))}"
        )


def test_a_seed_says_all_that_happens():
    """In another process, where strings have other hashes, it is the same."""
    seeds = 12
    here = [play(scenario_of(seed)).digest for seed in range(seeds)]
    there = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--digests", str(seeds)],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.split() == here
    assert len(set(here)) == seeds


def test_scenarios_have_all_kinds_of_requests_and_faults():
    kinds, events, seeds = set(), set(), range(100)
    for scenario in map(scenario_of, seeds):
        events |= {event.kind for event in scenario.events}
        for client in scenario.clients:
            for ask in client.asks:
                message = ask.message
                kinds |= {
                    (message.kind, message.grammar is not None, bool(message.media), ask.stream)
                }
                if message.kind == "generate":
                    assert expected(message)[0]
    assert len(kinds) == 8
    assert len(events) == 17


def test_a_failure_is_shrunk_to_what_it_needs():
    """Were a `pause` a fault, one client and one pause would show it."""
    scenario = next(
        found
        for found in map(scenario_of, range(100))
        if any(event.kind == "pause" for event in found.events) and len(found.events) > 2
    )
    least = shrunk(scenario, lambda less: any(event.kind == "pause" for event in less.events))
    assert [event.kind for event in least.events] == ["pause"]
    assert least.clients == least.late == ()
    assert not still_fails(least)


def test_a_story_names_the_seed_and_what_it_found():
    report = play(scenario_of(0))
    report.found.append("a request waits for ever")
    told = story(report)
    assert "Seed 0" in told and "a request waits for ever" in told
    assert "python -m tests.simulation 0 --trace" in told
    assert report.tail[-1].strip() in told
