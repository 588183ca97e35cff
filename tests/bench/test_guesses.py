"""`bench serve` beside the counters of guessed tokens."""

import asyncio

import httpx
import pytest

from pagoda.bench.datasets import DatasetConfig
from pagoda.bench.guesses import Guesses, read_guesses, summarize_guesses
from pagoda.bench.serve import LoadConfig, bench_serve
from tests.server.conftest import running
from tests.server.fakes import FakeClient


class Counting(FakeClient):
    """Each request has ten drafts of two tokens: eight first ones come true, and five second."""

    def submit(self, requests, *rest):
        stats = self.stats
        stats.spec_drafts += 10
        stats.spec_draft_tokens += 20
        stats.spec_accepted_tokens += 13
        first, second = stats.spec_accepted_per_position or (0, 0)
        stats.spec_accepted_per_position = [first + 8, second + 5]
        return super().submit(requests, *rest)


def test_bench_serve_says_what_came_of_guesses():
    """Those of the warm-up are not counted."""
    dataset = DatasetConfig(num_prompts=3, random_input_len=8, random_output_len=4)
    with running(Counting()) as server:
        load = LoadConfig(base_url=server.url)
        work = bench_serve(load, dataset, progress=lambda done, total: None)
        result, table = asyncio.run(work)
    assert result["completed"] == 3
    found = {key: value for key, value in result.items() if key.startswith("spec_decode_")}
    assert found == {
        "spec_decode_acceptance_rate": 65.0, "spec_decode_acceptance_length": 2.3,
        "spec_decode_num_drafts": 30, "spec_decode_draft_tokens": 60,
        "spec_decode_accepted_tokens": 39,
        "spec_decode_per_position_acceptance_rates": [0.8, 0.5],
    }  # fmt: skip
    lines = table.splitlines()
    assert lines[-10:] == [
        "---------------Speculative Decoding---------------",
        f"{'Acceptance rate (%):':<40} {'65.00':<10}",
        f"{'Acceptance length:':<40} {'2.30':<10}",
        f"{'Drafts:':<40} {30:<10}",
        f"{'Draft tokens:':<40} {60:<10}",
        f"{'Accepted tokens:':<40} {39:<10}",
        "Per-position acceptance (%):",
        f"{'  Position 0:':<40} {'80.00':<10}",
        f"{'  Position 1:':<40} {'50.00':<10}",
        "=" * 50,
    ]


LLAMA_SERVER = """# HELP llamacpp:spec_decode_num_drafts_total Verification steps.
# TYPE llamacpp:spec_decode_num_drafts_total counter
llamacpp:spec_decode_num_drafts_total 4
# TYPE llamacpp:spec_decode_num_draft_tokens_total counter
llamacpp:spec_decode_num_draft_tokens_total 12
# TYPE llamacpp:spec_decode_num_accepted_tokens_total counter
llamacpp:spec_decode_num_accepted_tokens_total 5
# TYPE llamacpp:spec_decode_num_accepted_tokens_per_pos_total counter
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 3
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 2
"""


def telling(status: int, text: str) -> httpx.AsyncClient:
    transport = httpx.MockTransport(lambda request: httpx.Response(status, text=text))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


async def test_llama_server_is_understood_as_well():
    async with telling(200, LLAMA_SERVER) as http:
        assert await read_guesses(http) == Guesses(4, 12, 5, {0: 3, 1: 2})


@pytest.mark.parametrize(
    ("status", "text"),
    [(501, LLAMA_SERVER), (200, "no metrics {"), (200, ""), (200, "requests_total 3\n")],
)
async def test_a_server_that_tells_nothing(status, text):
    async with telling(status, text) as http:
        assert await read_guesses(http) is None


@pytest.mark.parametrize("before", [None, Guesses(4, 12, 5), Guesses(9, 20, 8)])
def test_nothing_to_tell(before):
    """No counters, no guesses, or a server that was started again."""
    assert summarize_guesses(before, Guesses(4, 12, 5)) == {}
    assert summarize_guesses(before, None) == {}
