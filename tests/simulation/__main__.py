"""Replays one seed, or plays many: `python -m tests.simulation SEED`, or `--seeds 20000`."""

import argparse
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.simulation.run import Summary, run_many, shrunk, still_fails, story
from tests.simulation.scenario import scenario_of
from tests.simulation.world import play

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks" / "reliability.md"
BEGIN, END = "<!-- last simulation -->", "<!-- end: last simulation -->"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="play this one")
    parser.add_argument("--trace", action="store_true", help="print all that happens")
    parser.add_argument("--shrink", action="store_true", help="leave out what it does not need")
    parser.add_argument("--seeds", type=int, default=300, help="how many, from 0 on")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--record", action="store_true", help=f"write the figures into {PAGE.name}")
    parser.add_argument("--digests", type=int, help="print the digests of so many seeds")
    args = parser.parse_args()
    if args.digests is not None:
        print("\n".join(play(scenario_of(seed)).digest for seed in range(args.digests)))
        return 0
    if args.seed is not None:
        return _play_one(args.seed, trace=args.trace, shrink=args.shrink)
    return _play_many(args.seeds, args.processes, record=args.record)


def _play_one(seed: int, *, trace: bool, shrink: bool) -> int:
    scenario = scenario_of(seed)
    if shrink and still_fails(scenario):
        scenario = shrunk(scenario, still_fails)
    report = play(scenario, keep=None)
    if trace:
        print("\n".join(report.tail))
    print(story(report) if report.found else f"Seed {seed} found nothing.")
    return 1 if report.found else 0


def _play_many(num_seeds: int, processes: int, *, record: bool) -> int:
    begun = time.monotonic()
    summary = Summary()
    for summary in run_many(num_seeds, processes):
        print(
            f"\r{summary.num_seeds} of {num_seeds} seeds, {len(summary.failures)} found something",
            end="",
            file=sys.stderr,
            flush=True,
        )
    print(f", in {time.monotonic() - begun:.0f} s.", file=sys.stderr)
    print("\n".join(_lines(summary)))
    for seed in sorted(summary.failures)[:1]:
        print(story(play(scenario_of(seed))))
    if record:
        _record(_lines(summary))
    return 1 if summary.failures else 0


def _lines(summary: Summary) -> list[str]:
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    faults = ", ".join(f"{kind} {count:,}" for kind, count in sorted(summary.faults.items()))
    lines = [
        f"- {datetime.now(UTC):%Y-%m-%d}, commit {commit or 'unknown'}: "
        f"{summary.num_seeds:,} seeds, {len(summary.failures)} found something",
        f"- {summary.virtual_seconds / 3600:,.0f} virtual hours, {summary.num_requests:,} requests",
        f"- faults: {faults}",
    ]
    if summary.failures:
        lines.append(f"- seeds that found something: {sorted(summary.failures)}")
    return lines


def _record(lines: list[str]) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text("\n".join([before + BEGIN, *lines, END]) + after)


if __name__ == "__main__":
    sys.exit(main())
