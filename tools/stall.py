"""What a long prompt does to others: to streams that run, and to short prompts that come behind it.

    python tools/stall.py --streams 8 --prompt 4000 [MODEL [flags of serve]]
    python tools/stall.py --streams 4 --image 1024x1024 [MODEL that sees [flags of serve]]
    python tools/stall.py --short 32 --prompt 8000 [MODEL [flags of serve]]

Starts `pagoda serve`, lets the streams generate, and measures their gaps for a while, then from
the moment a prompt is sent until its first token is there, and for a while again: a machine whose
speed changes changes both. Then sends a prompt like it to the server without streams. Fails when
the p99 of the gaps is more than --limit times as large with the prompt (3 by default).

With --short, sends prompts of so many tokens, one at a time, to the idle server and while the long
prompt is read. Fails when the median time to their first token beside
it is more than --limit times that of the idle server (2.5 by default). All in turns, three times.
"""

import argparse
import asyncio
import base64
import io
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from PIL import Image

from pagoda.bench.serverprocess import ServerProcess
from pagoda.bench.sse import events

WARM_UP_TOKENS = 16
GAPS_LIMIT, SHORT_LIMIT = 3.0, 2.5
ROUNDS, SHORT_PROMPTS = 3, 10
SHORT_PAUSE = 0.3
"""Seconds between two of them."""


@dataclass
class Stream:
    """When the tokens of one reply came, by time.perf_counter()."""

    arrivals: list[float] = field(default_factory=list)

    def gaps(self, begin: float, end: float) -> list[float]:
        """Seconds between tokens, that end between `begin` and `end`."""
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return [later - earlier for earlier, later in pairs if begin < later <= end]


async def generate(
    http: httpx.AsyncClient, model: str, prompt: list[int], max_tokens: int, stream: Stream
) -> None:
    body: dict[str, Any] = {
        "model": model, "prompt": prompt, "max_tokens": max_tokens, "stream": True,
        "ignore_eos": True, "temperature": 0, "return_token_ids": True,
    }  # fmt: skip
    async with http.stream("POST", "/v1/completions", json=body) as reply:
        async for event in events(reply):
            if event["choices"]:
                stream.arrivals.append(time.perf_counter())


async def first_token(http: httpx.AsyncClient, model: str, prompt: list[int]) -> float:
    """Seconds from the request to its first token."""
    stream = Stream()
    begun = time.perf_counter()
    await generate(http, model, prompt, 1, stream)
    return stream.arrivals[0] - begun


async def first_token_of_image(http: httpx.AsyncClient, model: str, size: str, seed: int) -> float:
    """Likewise, of a conversation with an image of noise."""
    width, height = map(int, size.split("x"))
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).save(file, "JPEG")
    url = "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
    part = {"type": "image_url", "image_url": {"url": url}}
    body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": [part]}]}
    begun = time.perf_counter()
    (await http.post("/v1/chat/completions", json=body)).raise_for_status()
    return time.perf_counter() - begun


async def measure(url: str, model: str, args: argparse.Namespace) -> int:
    chance = random.Random(args.seed)

    def random_prompt(length: int) -> list[int]:
        return chance.choices(range(1000, 20000), k=length)

    async def arrival(http: httpx.AsyncClient) -> float:
        if args.image is not None:
            return await first_token_of_image(http, model, args.image, chance.randrange(1 << 30))
        return await first_token(http, model, random_prompt(args.prompt))

    async with httpx.AsyncClient(base_url=url, timeout=None, verify=False) as http:
        streams = [Stream() for _ in range(args.streams)]
        tasks = [
            asyncio.create_task(generate(http, model, random_prompt(32), args.tokens, stream))
            for stream in streams
        ]
        while min(len(stream.arrivals) for stream in streams) < WARM_UP_TOKENS:
            await asyncio.sleep(0.05)
        begun = time.perf_counter()
        await asyncio.sleep(args.seconds)
        sent = time.perf_counter()
        beside = await arrival(http)
        done = sent + beside
        await asyncio.sleep(args.seconds)
        if any(task.done() for task in tasks):
            print("The streams ended too early; raise --tokens.", file=sys.stderr)
            return 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        alone = await arrival(http)
    without = [
        gap
        for stream in streams
        for gap in stream.gaps(begun, sent) + stream.gaps(done, done + args.seconds)
    ]
    with_it = [gap for stream in streams for gap in stream.gaps(sent, done)]
    for name, gaps in (("without the prompt", without), ("with it", with_it)):
        p50, p99, most = (1000 * np.percentile(gaps, q) for q in (50, 99, 100))
        print(f"gaps {name:<20}p50 {p50:8.1f} ms  p99 {p99:8.1f} ms  max {most:8.1f} ms")
    ratio = float(np.percentile(with_it, 99) / np.percentile(without, 99))
    limit = GAPS_LIMIT if args.limit is None else args.limit
    print(f"p99 with / without     {ratio:.2f} (limit {limit:g})")
    print(f"first token of it beside the streams {beside:.2f} s, alone {alone:.2f} s")
    return 0 if ratio <= limit else 1


async def measure_short(url: str, model: str, args: argparse.Namespace) -> int:
    chance = random.Random(args.seed)

    def random_prompt(length: int) -> list[int]:
        return chance.choices(range(1000, 20000), k=length)

    async with httpx.AsyncClient(base_url=url, timeout=None, verify=False) as http:

        async def short() -> float:
            await asyncio.sleep(chance.uniform(0.5, 1.5) * SHORT_PAUSE)
            return await first_token(http, model, random_prompt(args.short))

        # The engine learns its pace, also of replies.
        await generate(http, model, random_prompt(args.short), WARM_UP_TOKENS, Stream())
        await first_token(http, model, random_prompt(args.prompt))
        idle, beside, of_long = [], [], []
        for _ in range(ROUNDS):  # In turns: the machine's speed may change.
            idle += [await short() for _ in range(SHORT_PROMPTS)]
            alone = await first_token(http, model, random_prompt(args.prompt))
            reading = asyncio.create_task(first_token(http, model, random_prompt(args.prompt)))
            while not reading.done():
                seconds = await short()
                if not reading.done():
                    beside.append(seconds)
            of_long.append(await reading / alone)
    if not beside:
        print("No short prompt came while the long one was read; raise --prompt.", file=sys.stderr)
        return 2
    for name, seconds_each in (("idle", idle), ("beside it", beside)):
        p50, most = 1000 * statistics.median(seconds_each), 1000 * max(seconds_each)
        count = len(seconds_each)
        print(f"first token {name:<10} p50 {p50:8.1f} ms  max {most:8.1f} ms  of {count} prompts")
    ratio = statistics.median(beside) / statistics.median(idle)
    limit = SHORT_LIMIT if args.limit is None else args.limit
    print(f"p50 beside / idle      {ratio:.2f} (limit {limit:g})")
    ratios = ", ".join(f"{one:.2f}" for one in of_long)
    print(f"first token of the long one beside them / alone: {ratios}")
    return 0 if ratio <= limit else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=4000, help="tokens")
    parser.add_argument("--image", metavar="WxH", help="an image in the prompt's place")
    parser.add_argument("--tokens", type=int, default=4000, help="most tokens of a stream")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured without the prompt")
    parser.add_argument("--short", type=int, help="tokens of short prompts; no streams then")
    parser.add_argument("--limit", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("words", metavar="MODEL [flags]", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    quiet = ["--disable-uvicorn-access-log", "--disable-log-stats"]
    with ServerProcess([*args.words, "--port", "0", *quiet]) as server:
        server.wait_ready()
        measured = measure if args.short is None else measure_short
        return asyncio.run(measured(server.url, server.name, args))


if __name__ == "__main__":
    sys.exit(main())
