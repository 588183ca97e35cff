"""The figures of `bench serving-cost`, and one short run against the real server."""

import subprocess
import sys

import pytest

from pagoda.bench.paced_engine import PacedRunner
from pagoda.bench.serving_cost import ServingCost, ServingCostConfig, serving_cost_table
from pagoda.core.messages import AddRequest
from pagoda.core.plan import NewRow
from tests.plans import Planned, plan_of


def test_the_pace_of_a_step():
    config = ServingCostConfig(streams=16, rate=1500.0, seconds=10.0)
    assert config.step_ms == pytest.approx(10.667, abs=1e-3)
    assert config.tokens_per_stream == 938


def test_the_table():
    cost = ServingCost("chat", tokens=15000, chunks=14700, elapsed=10.0, cpu=1.0)
    header, rule, row = serving_cost_table(ServingCostConfig(), [cost]).splitlines()
    assert len(header) == len(rule) == len(row)
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells == ["chat", "1500", "0.98", "66.7", "10.0%"]


def test_replies_repeat_their_prompt():
    runner, tokens = PacedRunner(0.0), []
    row = NewRow(row=0, request=AddRequest(req_id="a", prompt_token_ids=[7, 8, 9]), req_id="a")
    for step, (start, count) in enumerate([(0, 2), (2, 1), (3, 1), (4, 1), (5, 1)]):
        planned = Planned(
            req_id="a", num_computed_tokens=start, num_tokens=count, new_block_ids=[[]],
            samples=start + count >= 3,
        )  # fmt: skip
        plan = plan_of(step, [planned], [] if step else [row])
        tokens += runner.execute(plan).results[0].token_ids
    assert tokens == [7, 8, 9, 7]


def test_a_short_run(smollm2_gguf):
    words = ["--streams", "4", "--rate", "400", "--seconds", "0.3", str(smollm2_gguf)]
    command = [sys.executable, "-m", "pagoda", "bench", "serving-cost", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    routes = [line.split("|")[1].strip() for line in done.stdout.splitlines()[2:]]
    assert routes == ["chat", "completions"]
