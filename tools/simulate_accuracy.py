"""How near `pagoda simulate` comes to three engines that share this machine.

    python -m tools.simulate_accuracy [--runs 5] [--rates 0.5 1 1.5] [--seconds 45] [--engines 3]

A run measures a profile with `pagoda bench step-times`. Each rate is then a load of `pagoda bench
serve` on a server of its own, and what was asked is simulated from the profile. The table has the
medians of all runs, and each run's ratio between the two. "others" is the largest share of the
machine's CPU time that went to other programs: a load during which it is not near 0 says nothing.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from pagoda.bench.serverprocess import ServerProcess

_MODEL = "smollm2"
_PROFILE = (
    "--requests", "8", "--prompt-tokens", "256", "--context", "256", "--steps", "4",
    "--rounds", "2",
)  # fmt: skip
_PROMPTS = ("--input-len", "128", "--output-len", "64", "--random-range-ratio", "0.5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.5, 1.0, 1.5])
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--engines", type=int, default=3)
    args = parser.parse_args()
    found: dict[tuple[float, str], list[tuple[float, float]]] = {}
    others = dict.fromkeys(args.rates, 0.0)
    for run in range(args.runs):
        with tempfile.TemporaryDirectory() as folder:
            profile = Path(folder) / "profile.json"
            _measure_profile(profile, args.engines)
            for rate in args.rates:
                print(f"run {run + 1} of {args.runs}, {rate:g} requests/s", file=sys.stderr)
                before = _cpu_seconds()
                real = _measure(rate, args.seconds, args.engines)
                taken = zip(_cpu_seconds(), before, strict=True)
                busy, own, whole = (now - then for now, then in taken)
                others[rate] = max(others[rate], (busy - own) / whole)
                made = _simulate(real, profile, args.engines)
                for name, pair in _figures(real, made).items():
                    found.setdefault((rate, name), []).append(pair)
    print(*_table(found, others), sep="\n")


def _table(
    found: dict[tuple[float, str], list[tuple[float, float]]], others: dict[float, float]
) -> Iterator[str]:
    yield "| requests/s | figure | measured | simulated | median ratio | ratios | others |"
    yield "|---:|---|---:|---:|---:|---|---:|"
    for (rate, name), pairs in found.items():
        ratios = sorted(second / first for first, second in pairs)
        first, second = (median(values) for values in zip(*pairs, strict=True))
        every = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        line = f"{first:.1f} | {second:.1f} | {median(ratios):.2f} | {every} | {others[rate]:.0%}"
        yield f"| {rate:g} | {name} | {line} |"


def _measure_profile(path: Path, engines: int) -> None:
    command = [
        sys.executable, "-m", "pagoda", "bench", "step-times", _MODEL, *_PROFILE,
        "--data-parallel-size", str(engines), "--output", str(path),
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _measure(rate: float, seconds: float, engines: int) -> dict[str, Any]:
    """The result of `bench serve`, with its details."""
    words = [_MODEL, "--data-parallel-size", str(engines), "--spec-method", "none", "--port", "0"]
    with tempfile.TemporaryDirectory() as folder, ServerProcess(words) as server:
        server.wait_ready()
        out = Path(folder) / "real.json"
        command = [
            sys.executable, "-m", "pagoda", "bench", "serve", "--base-url", server.url, *_PROMPTS,
            "--request-rate", str(rate), "--num-prompts", str(round(rate * seconds)),
            "--seed", str(round(100 * rate)), "--ignore-eos", "--num-warmups", str(2 * engines),
            "--save-detailed", "--disable-tqdm", "--result-filename", str(out),
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def _simulate(real: dict[str, Any], profile: Path, engines: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        asked = zip(real["start_times"], real["input_lens"], real["output_lens"], strict=True)
        trace.write_text("".join(
            json.dumps({"timestamp": 1000 * time, "input_length": read, "output_length": written})
            + "\n"
            for time, read, written in asked
        ))  # fmt: skip
        command = [
            sys.executable, "-m", "pagoda", "simulate", _MODEL, "--profile", str(profile),
            "--trace", str(trace), "--data-parallel-size", str(engines), "--json",
        ]  # fmt: skip
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def _figures(real: dict[str, Any], made: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """By name, what was measured and what was simulated; times in ms."""
    gaps = [sum(itls) / (count - 1) for itls, count in zip(
        real["itls"], real["output_lens"], strict=True) if count > 1]  # fmt: skip
    # From the first request to the last token: the client's own figure counts what it waits before.
    parts = zip(real["start_times"], real["ttfts"], real["itls"], strict=True)
    ended = max(started + first + sum(others) for started, first, others in parts)
    speed = sum(real["output_lens"]) / (ended - min(real["start_times"]))
    found = {"output tokens/s": (speed, made["output_tokens_per_second"])}
    for name, values in (("ttft", real["ttfts"]), ("tpot", gaps)):
        for wanted in (50, 90):
            measured = 1000 * float(np.percentile(values, wanted))
            found[f"{name.upper()} p{wanted}, ms"] = (measured, 1000 * made[name][f"p{wanted}"])
    return found


def _cpu_seconds() -> tuple[float, float, float]:
    """CPU time so far: of all programs, of this one and what it started and saw end, and what there
    was in all."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    ticks = [int(field) / os.sysconf("SC_CLK_TCK") for field in fields]
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(one.ru_utime + one.ru_stime for one in own), sum(ticks)


if __name__ == "__main__":
    main()
