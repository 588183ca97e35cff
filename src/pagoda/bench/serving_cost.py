"""`bench serving-cost`: CPU time of the server's own process per token, the model left out."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from pagoda.base.machine import cpu_seconds
from pagoda.bench.client import LoadClient, Prompt
from pagoda.bench.serverprocess import ServerProcess
from pagoda.bench.sse import ServerError
from pagoda.bench.stats import RequestRecord
from pagoda.config.option import Options, option

_ROUTES = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
# The replies repeat it: plain English, with a few characters of several bytes.
_TEXT = (
    "The keeper of the old stone pagoda climbs its seven floors each morning at dawn, counts the "
    "bells, and writes down what the wind did to them: “three rang, one cracked — naïve repairs!” "
)


@dataclass(frozen=True)
class ServingCostConfig(Options):
    """How many tokens, and how fast they come."""

    streams: int = option(16, "Replies under way at once.", bounds=(1, 256))
    rate: float = option(1500.0, "Tokens per second of all streams together.", bounds=(1, 10**6))
    seconds: float = option(10.0, "How long each route is measured.", bounds=(0.1, 3600))

    @property
    def step_ms(self) -> float:
        return 1000 * self.streams / self.rate

    @property
    def tokens_per_stream(self) -> int:
        return max(1, round(self.seconds * self.rate / self.streams))


@dataclass(frozen=True)
class ServingCost:
    route: str
    tokens: int
    chunks: int
    """As the clients received them. Fewer than tokens: the server did not keep up."""
    elapsed: float
    """Seconds from the first request to the last token."""
    cpu: float
    """Seconds that the server's process computed meanwhile."""

    @property
    def microseconds_per_token(self) -> float:
        return 1e6 * self.cpu / self.tokens


def bench_serving_cost(
    config: ServingCostConfig, command: Sequence[str], words: Sequence[str]
) -> list[ServingCost]:
    """Measure both routes of a server that the module `command` starts with the flags `words`.

    Its engine is to give each stream a token every `--max-step-ms` milliseconds. Raises
    PagodaError when the server does not start, ServerError when a request fails.
    """
    flags = [*words, "--port", "0", "--max-step-ms", f"{config.step_ms:.6f}"]
    with ServerProcess([*flags, "--disable-uvicorn-access-log"], command) as server:
        server.wait_ready()
        return [asyncio.run(_measure(config, server, route)) for route in _ROUTES]


async def _measure(config: ServingCostConfig, server: ServerProcess, route: str) -> ServingCost:
    # Without TLS's certificates, which take 20 ms to load.
    async with httpx.AsyncClient(base_url=server.url, timeout=None, verify=False) as http:
        client = LoadClient(http, _ROUTES[route], server.name, {"ignore_eos": True})
        await _run(client, config.streams, 32)  # connections, first calls
        spent = cpu_seconds(server.process.pid)
        records = await _run(client, config.streams, config.tokens_per_stream)
        spent = cpu_seconds(server.process.pid) - spent
    begun = min(record.started for record in records)
    return ServingCost(
        route,
        tokens=sum(record.output_tokens for record in records),
        chunks=sum(1 + len(record.itls) for record in records),
        elapsed=max(record.started + record.latency for record in records) - begun,
        cpu=spent,
    )


async def _run(client: LoadClient, streams: int, tokens: int) -> list[RequestRecord]:
    prompt = Prompt(_TEXT * 2, 0, tokens)
    records = await asyncio.gather(*(client.send(prompt) for _ in range(streams)))
    for record in records:
        if record.error:
            raise ServerError(record.error)
    return records


def serving_cost_table(config: ServingCostConfig, costs: Sequence[ServingCost]) -> str:
    share = f"of a core at {config.rate:g} tok/s"
    lines = [
        f"| route       | tok/s  | chunks/token | CPU us/token | {share} |",
        f"|-------------|-------:|-------------:|-------------:|{'-' * (len(share) + 1)}:|",
    ]
    for cost in costs:
        per_token = cost.microseconds_per_token
        lines.append(
            f"| {cost.route:<11} | {cost.tokens / cost.elapsed:6.0f} "
            f"| {cost.chunks / cost.tokens:12.2f} | {per_token:12.1f} "
            f"| {per_token * config.rate / 1e6:{len(share)}.1%} |"
        )
    return "\n".join(lines)
