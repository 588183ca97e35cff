"""Requests on a clock that is simulated: by hand, and leaps beside single steps."""

import json
import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from pagoda.base.columns import columns
from pagoda.base.errors import ConfigError
from pagoda.base.words import speak
from pagoda.cli.bars import CountBar
from pagoda.cli.main import main
from pagoda.core.kvcache.spec import KVGroupSpec
from pagoda.core.limits import SchedulerLimits
from pagoda.core.messages import AddRequest
from pagoda.core.routing import PrefixAware, ReplicaLoad, make_router
from pagoda.planner.devices.step_table import StepPoint, StepTable
from pagoda.simulate.goals import Goal, Hopeless, parse_goal, replicas_for
from pagoda.simulate.leaping import LeapingScheduler
from pagoda.simulate.records import Records, weighted_percentiles
from pagoda.simulate.replica import Machine
from pagoda.simulate.traces import (
    Arrival,
    MadeUp,
    Recorded,
    TraceFileConfig,
    UsersConfig,
    read_trace,
)
from pagoda.simulate.world import Fleet, _World, simulate
from tests.unit.doctor.models import LLAMA, subject_of

GROUP = KVGroupSpec("full", (0,), 1, 1, 16, kv_dtype="float32")
TABLE = StepTable(
    [
        StepPoint("decode", 1, 1, 1.0),
        StepPoint("prompt", 16, 8.5, 2.0),
        StepPoint("prompt", 32, 16.5, 4.0),
    ]
)
UNEVEN = StepTable(
    [
        StepPoint("decode", 1, 1, 0.011), StepPoint("decode", 1, 900, 0.017),
        StepPoint("decode", 8, 1, 0.019), StepPoint("decode", 8, 900, 0.043),
        StepPoint("prompt", 16, 8.5, 0.013), StepPoint("prompt", 256, 128.5, 0.11),
        StepPoint("prompt", 256, 900.0, 0.17),
    ]
)  # fmt: skip


def machine(steps: StepTable = TABLE, num_slabs: int = 200, **limits: object) -> Machine:
    values = {"max_num_reqs": 4, "max_num_batched_tokens": 32, "max_model_len": 1024, **limits}
    return Machine(SchedulerLimits(**values), (GROUP,), num_slabs, 16 * (num_slabs - 1), steps)


def arrival(time: float, prompt: int, output: int, number: int = 0) -> Arrival:
    return Arrival(time, ((2 * number + 1, prompt),), prompt, output, 2 * number + 2)


@pytest.mark.parametrize("leaps", [True, False])
def test_two_requests_by_hand(leaps):
    """32 tokens are read in 4 s, a token is written in 1 s. The second request comes at 5 s: its 16
    tokens are read with the third token of the first, 17 in all, in 2 + 2/16 s."""
    trace = Recorded([arrival(0.0, 32, 3), arrival(5.0, 16, 2, 1)])
    made = simulate(trace, Fleet(machine()), leaps=leaps)
    records = made.records
    assert records.ttft.tolist() == [4.0, 2.125]
    assert records.e2e.tolist() == [7.125, 3.125]
    assert records.tpot.tolist() == [3.125 / 2, 1.0]
    assert Counter(np.repeat(records.gaps, records.gap_counts)) == {1.0: 2, 2.125: 1}
    assert (records.duration, made.busy, made.steps) == (8.125, 1.0, 4)
    assert (records.prompt_tokens, records.output_tokens) == (48, 5)
    assert (made.prefix_hits, made.prefix_queries, made.preemptions) == (0, 48, 0)


def test_with_two_steps_in_flight_who_comes_waits_for_the_planned_one():
    """The step of 4 to 5 s is planned at 0 s and the next at 4 s, so what comes at 4.5 s is read
    from 6 s on."""
    device = replace(machine(), steps_in_flight=2)
    trace = Recorded([arrival(0.0, 32, 9), arrival(4.5, 32, 1, 1)])
    second, first = simulate(trace, Fleet(device)).records.ttft.tolist()
    assert first == 4.0
    # The stream has one of the 32 tokens of that step, so that the last one takes another.
    assert second == 6.0 + 4.0 + 1.0 - 4.5


MIXED = UsersConfig(
    users=24, request_rate=2.0, burstiness=0.5, prefix_len=40, input_len=60, output_len=150,
    range_ratio=0.8,
)  # fmt: skip


@pytest.mark.parametrize(
    ("users", "device", "replicas", "router"),
    [
        (MIXED, machine(UNEVEN), 1, "round-robin"),
        (MIXED, machine(UNEVEN, num_slabs=40, max_num_reqs=8), 1, "round-robin"),
        (MIXED, machine(UNEVEN, max_num_reqs=8, max_step_growth=2.2), 3, "least-loaded"),
        (replace(MIXED, users=8, turns=3), machine(UNEVEN, num_slabs=90), 2, "prefix-aware"),
    ],
)
@pytest.mark.parametrize("in_flight", [1, 2])
def test_leaping_is_stepping(users, device, replicas, router, in_flight, monkeypatch):
    leaps = []
    leap = LeapingScheduler.leap
    monkeypatch.setattr(
        LeapingScheduler, "leap", lambda self, *args: leaps.append(args) or leap(self, *args)
    )
    fleet = Fleet(replace(device, steps_in_flight=in_flight), replicas, router)
    worlds = [_World(MadeUp(users), fleet, leaps=how) for how in (False, True)]
    for world in worlds:
        world.run()
        for replica in world.replicas:
            replica.scheduler.check_integrity()
            assert not replica.scheduler.has_work()
    one, other = (world.records for world in worlds)
    for name in ("ttft", "tpot", "e2e", "kv_shares"):
        assert getattr(one, name) == getattr(other, name), name
    gaps = [Counter(dict.fromkeys(r.gaps, 0)) for r in (one, other)]
    for counted, records in zip(gaps, (one, other), strict=True):
        for gap, count in zip(records.gaps, records.gap_counts, strict=True):
            counted[gap] += count
    assert gaps[0] == gaps[1]
    for first, second in zip(*(world.replicas for world in worlds), strict=True):
        assert first.scheduler.stats() == second.scheduler.stats()
        assert first.busy == second.busy
        pools = [r.scheduler.kv.cached_blocks() for r in (first, second)]
        assert pools[0] == pools[1]
    # Every request ends once, with all its tokens.
    assert one.completed == users.users * users.turns and not one.num_refused
    assert sum(one.gap_counts) == one.output_tokens - one.completed
    assert sum(len(args[0]) for args in leaps) > 100


def test_what_fits_nowhere_is_refused_and_counted():
    trace = Recorded([arrival(0.0, 2000, 3), arrival(1.0, 16, 2, 1)])
    made = simulate(trace, Fleet(machine()))
    assert (made.records.num_refused, made.records.completed) == (1, 1)
    assert "maximum context length is 1024" in made.records.refusal[1]


def test_percentiles_are_numpys():
    rng = random.Random(3)
    for size in (1, 2, 7, 50):
        values = np.array([rng.choice([0.5, rng.random(), 3.0]) for _ in range(size)])
        counts = np.array([rng.randint(1, 9) for _ in range(size)])
        wanted = [0, 12.5, 50, 90, 99, 99.9, 100]
        whole = np.percentile(np.repeat(values, counts), wanted)
        assert weighted_percentiles(values, counts, wanted) == pytest.approx(whole, rel=1e-12)


def test_steps_between_known_ones():
    table = StepTable(
        [
            StepPoint("decode", 2, 10, 1.0), StepPoint("decode", 2, 20, 2.0),
            StepPoint("decode", 4, 10, 3.0), StepPoint("decode", 4, 20, 6.0),
            StepPoint("prompt", 8, 4.5, 1.0),
        ]
    )  # fmt: skip
    assert table.decode_seconds(2, 2 * 15) == 1.5
    assert table.decode_seconds(3, 3 * 15) == 3.0  # between 1.5 and 4.5
    assert table.decode_seconds(2, 2 * 5) == 1.0 and table.decode_seconds(1, 10) == 1.0
    assert table.decode_seconds(2, 2 * 30) == 3.0
    assert table.decode_seconds(6, 6 * 10) == 5.0


def test_agents_find_most_of_their_prompts():
    users = UsersConfig(
        users=4, turns=20, prefix_len=6000, input_len=500, output_len=96, range_ratio=0.5,
        request_rate=0.2,
    )  # fmt: skip
    device = machine(UNEVEN, 20_000, max_num_batched_tokens=2048, max_model_len=32768)
    made = simulate(MadeUp(users), Fleet(device, 2, "prefix-aware"))
    assert 0.93 < made.prefix_hits / made.prefix_queries < 0.97


def test_traces_of_others(tmp_path):
    burst = tmp_path / "burst.csv"
    burst.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "7,GPT-4,20,0,20,API log\n"
        "45.5,ChatGPT,1087,230,1317,Conversation log\n"
    )
    found = list(read_trace(TraceFileConfig(trace=str(burst))))
    assert [(one.time, one.prompt_len, one.output_len) for one in found] == [
        (0.0, 472, 18), (40.5, 1087, 230),
    ]  # fmt: skip
    lines = [
        {"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]},
        {"timestamp": 3000, "input_length": 1600, "output_length": 6, "hash_ids": [7, 8]},
    ]
    mooncake = tmp_path / "mooncake.jsonl"
    mooncake.write_text("\n".join(json.dumps(line) for line in lines))
    first, second = read_trace(TraceFileConfig(trace=str(mooncake)))
    assert first.prompt == ((7, 512), (8, 512), (9, 76))
    assert second.prompt[:2] == first.prompt[:2] and second.prompt[2][1] == 576
    assert (first.time, second.time) == (0.0, 2.0)
    device = machine(UNEVEN, 2000, max_model_len=4096, max_num_batched_tokens=2048)
    made = simulate(Recorded([first, second]), Fleet(device))
    assert made.prefix_hits == 1024
    no_reply = json.dumps({**lines[0], "output_length": 0})
    for text, problem in (
        ("a,b\n1,2\n", "no trace of BurstGPT"), ("", "no column"),
        ('{"x": 1}\n', "line 1"), (no_reply, "line 1"),
    ):  # fmt: skip
        mooncake.write_text(text)
        with pytest.raises(ConfigError, match=problem):
            read_trace(TraceFileConfig(trace=str(mooncake)))


def test_the_fewest_replicas_for_a_goal():
    """One replica serves a request of 6 s at a time; 12 come in 12 s, so six are enough."""
    goal = parse_goal("P99  TTFT < 4500 ms")
    assert goal == Goal("P99 TTFT < 4500 ms", "ttft", 99.0, 4.5)
    trace = Recorded([arrival(float(i), 32, 3, i) for i in range(12)])

    def run(count, hopeless):
        fleet = Fleet(machine(max_num_reqs=1), count)
        return simulate(trace, fleet, is_hopeless=hopeless)

    best, tried = replicas_for([goal], run, 12)
    assert best.fleet.replicas == 6 and best.records.ttft.tolist() == [4.0] * 12
    assert sorted(one.fleet.replicas for one in tried) == [1, 2, 4, 5, 6, 8]
    late = Records()
    late.ttft.extend([1.0, 9.0, 9.0])
    late.e2e.extend([1.0, 9.0, 9.0])
    assert Hopeless([goal], 90)(late) and not Hopeless([goal], 200)(late)
    with pytest.raises(ConfigError, match="p99 ttft < 2s"):
        parse_goal("ttft 2")


def test_a_router_follows_prefixes_until_a_replica_is_full():
    router = PrefixAware(16)
    empty = ReplicaLoad(0, 0, 8, 4096)
    ask = lambda token, *loads: router.choose(  # noqa: E731
        AddRequest(req_id="a", prompt_token_ids=[token] * 160), loads
    )
    assert ask(1, empty, empty) == 0
    assert ask(2, empty._replace(requests=1), empty) == 1
    assert ask(1, empty._replace(requests=2), empty) == 0
    assert ask(1, empty._replace(requests=3), empty) == 1
    assert ask(3, empty._replace(requests=9, max_requests=9), empty._replace(requests=5)) == 1
    assert ask(3, empty, empty._replace(requests=8)) == 0
    assert ask(2, empty, empty) == 1
    least = make_router("least-loaded", 16)
    assert least.choose(None, [empty._replace(prompt_tokens=9), empty]) == 1
    around = make_router("round-robin", 16)
    assert [around.choose(None, [empty] * 3) for _ in range(4)] == [0, 1, 2, 0]


def test_the_command(tmp_path, capsys):
    subject_of(tmp_path, LLAMA)
    words = ["simulate", str(tmp_path), "--users", "30", "--request-rate", "20", "--max-model-len",
             "4096", "--price", "2"]  # fmt: skip
    assert main([*words, "--gpu", "A100-80G", "--json", "--replicas", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["completed"], found["replicas"], found["refused"]) == (30, 2, 0)
    cost = 2 * 2 * found["duration"] / 3600
    assert math.isclose(found["cost_per_million_output_tokens"], 1e6 * cost / (30 * 128))
    assert 0 < found["ttft"]["p50"] <= found["ttft"]["p99"] < found["e2e"]["mean"]
    profile = tmp_path / "profile.json"
    points = [["decode", 1, 33.0, 0.01], ["prompt", 64, 32.5, 0.1]]
    names = ("kind", "tokens", "context", "seconds")
    profile.write_text(json.dumps({
        "model": "m", "device": "cpu", "points": [dict(zip(names, p, strict=True)) for p in points],
    }))  # fmt: skip
    by_profile = [*words, "--profile", str(profile), "--device", "cpu"]
    assert main([*by_profile, "--goal", "p90 e2e < 60s"]) == 0
    said, warned = capsys.readouterr()
    assert f"was measured with m, not {tmp_path}" in warned
    assert "goal p90 e2e < 60s: holds" in said and "1 replicas: enough" in said
    assert main([*by_profile, "--goal", "p50 e2e < 1ms", "--users", "2"]) == 1
    capsys.readouterr()
    profile.write_text("{}")
    for wrong in (words, by_profile, [*by_profile, "--goal", "fast"]):
        assert main(wrong) == 1
        assert "`pagoda bench step-times" in (err := capsys.readouterr().err) or "--goal" in err


def test_the_report_is_aligned_and_chinese(tmp_path, capsys):
    subject_of(tmp_path, LLAMA)
    words = ["simulate", str(tmp_path), "--gpu", "A100-80G", "--users", "4", "--max-model-len",
             "4096"]  # fmt: skip
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("one replica: 4 of 4 requests in ")
    table = lines[3:8]
    assert [line.split()[0] for line in table] == ["ms", "TTFT", "ITL", "TPOT", "E2E"]
    assert table[0].split()[1:] == ["mean", "p50", "p90", "p99"]
    assert {len(line) for line in table} == {len(table[0])} and "|" not in "".join(lines)
    try:
        assert main(["--lang", "zh", *words]) == 0
    finally:
        speak("en")
    chinese = capsys.readouterr().out.splitlines()
    assert chinese[0].startswith("一个副本：") and chinese[3].split()[:2] == ["ms", "平均"]
    assert len({columns(line) for line in chinese[3:8]}) == 1
    assert [line.split() for line in chinese[4:8]] == [line.split() for line in lines[4:8]]


@pytest.mark.parametrize(("is_terminal", "quick"), [(True, -1.0), (True, 1e9), (False, -1.0)])
def test_progress_is_for_terminals_and_long_runs(tmp_path, capsys, monkeypatch, is_terminal, quick):
    subject_of(tmp_path, LLAMA)
    seen = []

    class Bar(CountBar):
        def update(self, done, total):
            seen.extend([(done, total)] if self._show else [])

    monkeypatch.setattr("pagoda.cli.simulate.CountBar", Bar)
    monkeypatch.setattr("pagoda.cli.simulate._QUICK_SECONDS", quick)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    words = ["simulate", str(tmp_path), "--gpu", "A100-80G", "--users", "70", "--output-len", "8",
             "--max-model-len", "4096"]  # fmt: skip
    assert main(words) == 0
    assert seen == ([(64, 70)] if is_terminal and quick < 0 else [])
