"""What the ledger predicts is what the engine takes at its largest step."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.system.harness import Served, status_bytes

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def predicted(served: Served) -> dict[str, float]:
    """Bytes by item, as the start-up log says."""
    rows = (re.search(r"\]   ([\w ]+?) +([\d.]+) ([KMG]iB) +", line) for line in served.log)
    return {row[1]: float(row[2]) * _UNITS[row[3]] for row in rows if row}


@contextmanager
def peak_of(pid: int) -> Iterator[list[int]]:
    """The highest private memory of the process, looked at every 5 ms."""
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], status_bytes(pid, "RssAnon"))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


@pytest.mark.slow
def test_the_largest_step_takes_what_was_predicted(serve, smollm2_gguf):
    served = serve(
        smollm2_gguf, "--kv-cache-memory-bytes", "64M", "--max-model-len", 1024,
        "--max-step-ms", 0,  # or a lone prompt would be read in smaller steps
        "--spec-method", "none",  # or logits are counted for guesses, which nobody makes here
    )  # fmt: skip
    served.wait_ready(60)
    items = predicted(served)
    assert set(items) == {"weights", "KV pool", "activations", "positions", "process"}
    complete = served.openai().completions.create
    with peak_of(served.engine_pid()) as peak:
        # Every block of the pool is written: 5 prompts of 600 tokens that have nothing in common.
        for first in range(5):
            prompt = [1000 + 700 * first + i for i in range(600)]
            complete(model=served.name, prompt=prompt, max_tokens=1)
        with ThreadPoolExecutor(64) as pool:
            everything = {
                "max_tokens": 3, "temperature": 1, "top_p": 0.9, "presence_penalty": 0.5,
                "logprobs": 5,
            }  # fmt: skip
            replies = [
                pool.submit(complete, model=served.name, prompt=[i + 1], **everything)
                for i in range(64)
            ]
            assert all(reply.result().usage.completion_tokens for reply in replies)
        complete(
            model=served.name, prompt=list(range(9000, 9512)), max_tokens=1,
            extra_body={"prompt_logprobs": 1},
        )  # fmt: skip
    total = sum(items.values())
    assert 0.95 * total <= peak[0] <= 1.05 * total
