"""`bench startup`: from the command to the first token, beside what torch's import alone takes."""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from pagoda.bench.client import LoadClient, Prompt
from pagoda.bench.serverprocess import ServerProcess
from pagoda.bench.sse import ServerError
from pagoda.version import __version__

_PROMPT = Prompt("Once upon a time", prompt_tokens=4, output_tokens=8)


@dataclass(frozen=True)
class StartupSample:
    """Seconds of one repetition."""

    import_torch: float
    """`python -c "import torch"`, the whole process."""
    ready: float
    """From the command `pagoda serve` to its ready line."""
    first_token: float
    """From the same command to the first token of a request that is sent when it is ready."""

    @property
    def beyond_torch(self) -> float:
        return self.first_token - self.import_torch


_ROWS: dict[str, tuple[str, Callable[[StartupSample], float]]] = {
    "import_torch": ("`import torch` alone", lambda sample: sample.import_torch),
    "ready": ("command to ready", lambda sample: sample.ready),
    "first_token": ("command to first token", lambda sample: sample.first_token),
    "beyond_torch": ("first token beyond `import torch`", lambda sample: sample.beyond_torch),
}


def bench_startup(
    words: Sequence[str], reps: int, progress: Callable[[int, int], None]
) -> list[StartupSample]:
    """Start `pagoda serve WORDS` `reps` times, each beside an import of torch.

    They take turns, so that a disk that warms up or a neighbour that wakes up meets both alike.
    Raises PagodaError when the server does not start or does not answer.
    """
    samples = []
    for done in range(reps):
        import_torch = _time_import()
        samples.append(StartupSample(import_torch, *_time_server(words)))
        progress(done + 1, reps)
    return samples


def markdown(samples: Sequence[StartupSample]) -> str:
    lines = [
        f"| {'start-up':<34}| median s | min s | max s |",
        f"|{'-' * 35}|---------:|------:|------:|",
    ]
    for name, read in _ROWS.values():
        values = [read(sample) for sample in samples]
        lines.append(
            f"| {name:<34}| {statistics.median(values):8.2f} "
            f"| {min(values):5.2f} | {max(values):5.2f} |"
        )
    return "\n".join([*lines, "", f"pagoda {__version__}, {len(samples)} repetitions"])


def as_json(samples: Sequence[StartupSample]) -> str:
    result = {
        key: {
            "median": statistics.median(map(read, samples)),
            "samples": [round(read(sample), 4) for sample in samples],
        }
        for key, (_, read) in _ROWS.items()
    }
    return json.dumps({"version": __version__, "unit": "s", **result}, indent=2)


FORMATS = {"md": markdown, "json": as_json}


def _time_import() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - begun


def _time_server(words: Sequence[str]) -> tuple[float, float]:
    """Seconds until ready, and until the first token."""
    begun = time.perf_counter()
    with ServerProcess([*words, "--port", "0"]) as server:
        server.wait_ready()
        ready = time.perf_counter()
        return ready - begun, asyncio.run(_first_token(server)) - begun


async def _first_token(server: ServerProcess) -> float:
    """When it came, by time.perf_counter()."""
    # Without TLS's certificates, which take 20 ms to load.
    async with httpx.AsyncClient(base_url=server.url, timeout=600, verify=False) as http:
        record = await LoadClient(http, "/v1/completions", server.name).send(_PROMPT)
    if record.error:
        raise ServerError(record.error)
    return record.started + record.ttft
