"""What llama.cpp's tests say of Pagoda, as a page."""

import re
from collections import defaultdict
from dataclasses import dataclass
from fnmatch import fnmatch

from bench.llama_tests.reasons import REASONS
from bench.peers.environments import LLAMA
from bench.peers.paths import ROOT

DOCUMENT = ROOT / "docs" / "benchmarks" / "llama-server-tests.md"
_HEAD = """# llama-server's own tests, against Pagoda

`python -m bench.llama_tests` fetches the tests of llama.cpp's server with the sources of
{package}, and runs them twice: with llama-server, and with `pagoda serve
--any-model-name` in its place, which gets the same command line. Their models are in the network,
so others stand in: the default model for their story teller, MiniLM for their encoder. A test that
llama-server does not pass with these either (it wants its own model's words, an adapter, pictures
or a download) says nothing of Pagoda, and is left out.
"""


@dataclass(frozen=True)
class Outcome:
    state: str
    """passed, failed or skipped"""
    why: str


def tables(theirs: dict[str, Outcome], ours: dict[str, Outcome]) -> str:
    """The page, of the outcomes by test of llama-server and of Pagoda."""
    by_file = defaultdict(list)
    for test in theirs:
        by_file[test.partition("::")[0]].append(test)
    rows, failed, totals = [], [], [0, 0, 0]
    for file, tests in sorted(by_file.items()):
        left = [test for test in tests if theirs[test].state == "passed"]
        passed = [test for test in left if _passed(ours, test)]
        failed += [test for test in left if not _passed(ours, test)]
        counts = (len(tests), len(left), len(passed))
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        rows.append(_row(file.removeprefix("test_"), *counts))
    share = totals[2] / max(totals[1], 1)
    lines = [
        _HEAD.format(package=LLAMA.packages[0].replace("==", " ")),
        f"**{totals[2]} of {totals[1]} pass ({share:.0%}).**",
        "",
        "| tests of | all | llama-server passes | Pagoda passes of these |",
        "|---|---:|---:|---:|",
        *rows,
        _row("all", *totals),
        "",
        "## What fails, and why",
        "",
        *_explained(failed, ours),
    ]
    return "\n".join(lines) + "\n"


def _passed(outcomes: dict[str, Outcome], test: str) -> bool:
    return test in outcomes and outcomes[test].state == "passed"


def _row(name: str, *counts: int) -> str:
    return f"| {name} | " + " | ".join(map(str, counts)) + " |"


def _explained(failed: list[str], ours: dict[str, Outcome]) -> list[str]:
    by_reason = defaultdict(list)
    for test in failed:
        by_reason[_reason(test, ours)].append(test)
    lines = ["| tests | why |", "|---|---|"]
    for reason, tests in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        names = sorted({re.sub(r"\[.*", "", test.partition("::")[2]) for test in tests})
        counted = f" ({len(tests)})" if len(tests) > 1 else ""
        lines.append(f"| {', '.join(f'`{name}`' for name in names)}{counted} | {reason} |")
    return lines


def _reason(test: str, ours: dict[str, Outcome]) -> str:
    for pattern, reason in REASONS.items():
        if fnmatch(test, pattern):
            return reason
    if test not in ours:
        return "**did not run**"
    first = ours[test].why.strip().splitlines()[0] if ours[test].why.strip() else "no message"
    return f"**not looked into**: {first}".replace("|", "\\|")
