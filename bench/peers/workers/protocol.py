"""A worker's half of the driver's protocol: one JSON command per line in, one JSON answer out.

A worker runs in its peer's environment, so it knows numpy and its peer and nothing of Pagoda. It
loads its model once, answers until its stdin ends, and sleeps in a read between commands.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

# Rows of logits that become fp64 at a time.
_ROWS = 64


def serve(start: Callable[[argparse.Namespace], Any]) -> None:
    """`start` makes the object whose methods are the measures; its `flags` and `version` say what
    it is."""
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--text-model", default="")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=4352)
    parser.add_argument("--dtype", default="")
    parser.add_argument("--library")
    parser.add_argument("--library-version", default="")
    parser.add_argument("--repack", action="store_true")
    parser.add_argument("--backend", default="")
    contender = start(parser.parse_args())
    print(json.dumps({"version": contender.version, "flags": contender.flags}), file=answers)
    for line in sys.stdin:
        command = json.loads(line)
        measure = getattr(contender, command.pop("measure"))
        try:
            answer = measure(**command)
        except Exception as error:  # noqa: BLE001 - the driver puts it into the table
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        print(json.dumps(answer), file=answers)


def timed(action: Callable[[], object]) -> float:
    """Seconds it took."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def random_ids(count: int, vocab_size: int, rng: np.random.Generator) -> list[int]:
    ids: list[int] = rng.integers(0, vocab_size, count).tolist()
    return ids


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """fp32 [rows, vocab] to fp32, summed in fp64."""
    out = np.empty(logits.shape, np.float32)
    for start in range(0, len(logits), _ROWS):
        rows = logits[start : start + _ROWS].astype(np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
        out[start : start + _ROWS] = rows
    return out


def divergence(reference: str, logits: np.ndarray) -> dict[str, Any]:
    """KL(reference || logits) summed over positions, and how often both rank the same token first.

    `reference` is an .npy file of fp32 log-probabilities [positions, vocab]; logits behind those
    (of the token after the text) are left out.
    """
    expected = np.load(reference, mmap_mode="r")
    logits = logits[: len(expected)]
    if expected.shape != logits.shape:
        raise ValueError(f"the reference has shape {expected.shape}, the logits {logits.shape}")
    total, agreed = 0.0, 0
    for start in range(0, len(logits), _ROWS):
        log_p = expected[start : start + _ROWS].astype(np.float64)
        log_q = log_softmax(logits[start : start + _ROWS]).astype(np.float64)
        total += float((np.exp(log_p) * (log_p - log_q)).sum())
        agreed += int((log_p.argmax(axis=1) == log_q.argmax(axis=1)).sum())
    return {"divergence": total, "agreed": agreed, "positions": len(logits)}
