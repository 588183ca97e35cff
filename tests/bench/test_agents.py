"""`bench agents`, with few and short sessions: what each part of the cache saves."""

import pytest

from pagoda.bench.agents.run import AgentsConfig, agents_table, bench_agents
from pagoda.bench.agents.trace import TraceConfig, make_sessions

TRACE = TraceConfig(
    sessions=5, subagents=2, turns=12, subagent_turns=3, system_tokens=600, result_tokens=120,
    reply_tokens=32,
)  # fmt: skip


@pytest.mark.parametrize(
    ("model", "pool", "host", "most"),
    [("full", 0.5, 4, 0.05), ("sliding", 3, 10, 0.1), ("hybrid", 2, 40, 0.2)],
)
def test_sessions_go_on_where_they_were(model: str, pool: float, host: float, most: float):
    """20 sessions of full length are measured by the command: docs/kv-cache.md."""
    config = AgentsConfig(models=model, pool=pool, host=host)
    rows = list(bench_agents(config, TRACE))
    found = {cache: outcome.share_again for _, cache, outcome in rows}
    assert len({outcome.prompt for *_, outcome in rows}) == 1
    assert found["and host memory"] < found["pool"]
    assert found["and disk"] <= found["and host memory"]
    assert found["and disk"] <= most, found
    header, rule, *lines = agents_table(rows).splitlines()
    assert len({len(line) for line in (header, rule, *lines)}) == 1


def test_known_sessions_save_what_finished_subagents_would_push_out():
    """Main agents that delegate all the time, and a pool that has room for them but not for what
    their subagents leave behind."""
    trace = TraceConfig(
        sessions=6, subagents=2, delegations=12, turns=24, subagent_turns=4, system_tokens=600,
        result_tokens=120, reply_tokens=32,
    )  # fmt: skip
    rows = bench_agents(AgentsConfig(models="full", pool=0.8), trace)
    unknown, known = (next(rows).outcome for _ in range(2))
    assert unknown.prompt == known.prompt
    assert known.again < unknown.again / 2


def test_it_says_how_far_it_is():
    lines: list[str] = []
    rows = bench_agents(AgentsConfig(models="full"), TRACE, lines.append)
    next(rows)
    assert lines[0] == "full layers, pool: 9 of 90 requests"
    assert len(lines) == 10 and lines[-1] == "full layers, pool: 90 of 90 requests"


def test_thoughts_leave_the_prompts_behind_a_message_of_the_user():
    agent = make_sessions(TRACE)[0]
    turns = list(agent.turns)
    extends = [
        after.prompt[: len(before.prompt)] == before.prompt
        for before, after in zip(turns, turns[1:], strict=False)
    ]
    assert extends == [number % 6 != 5 for number in range(11)]
