"""`bench speculation`: decoding with guesses that are verified, in turns with none."""

import statistics
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pagoda.bench.edits import Work, works
from pagoda.bench.llama_server import LlamaServer
from pagoda.config.option import Options, option

if TYPE_CHECKING:
    from pagoda.bench.inprocess import BenchEngine


@dataclass(frozen=True)
class SpeculationBenchConfig(Options):
    """How much is decoded, and how often."""

    output_len: int = option(256, "Tokens of each reply.", bounds=(2, 10**6))
    rounds: int = option(5, "Rounds, of which medians are taken.", bounds=(1, 1000))
    requests: tuple[str, ...] = option(("1", "16"), "Requests at once.")
    llama_server: str | None = option(
        None, "Program of llama.cpp's server, measured in turns on the same file (GGUF)."
    )
    llama_spec_type: str = option("ngram-mod", "How that one is to guess.")


@dataclass
class Row:
    work: Work
    requests: int
    speeds: dict[str, list[float]] = field(default_factory=dict)
    """Tokens per second of each round, by what was measured."""
    steps: int = 0
    """With guesses, in the last round, as the next three."""
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0

    def median(self, name: str) -> float:
        return statistics.median(self.speeds[name])

    def ratio(self, name: str, other: str) -> float:
        """The median of the rounds' ratios."""
        pairs = zip(self.speeds[name], self.speeds[other], strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)


def bench_speculation(
    engine: "BenchEngine",
    config: SpeculationBenchConfig,
    encode: Callable[[str], list[int]],
    servers: Sequence[LlamaServer],
    progress: Callable[[int, int], None],
) -> list[Row]:
    """Measure each work; `servers` take part where there is one request. Raises PagodaError where
    a request fails."""
    tasks = [Row(work, int(count)) for work in works() for count in config.requests]
    total = len(tasks) * (config.rounds + 1)
    for index, row in enumerate(tasks):
        for turn in range(config.rounds + 1):
            measured = _turn(engine, config, encode(row.work.prompt), row)
            if row.requests == 1:
                for server in servers:
                    work, count = row.work, config.output_len
                    measured[server.name] = server.speed(work.prompt, count, work.temperature)
            for name, speed in measured.items():
                if turn:  # the first warms up
                    row.speeds.setdefault(name, []).append(speed)
            progress(index * (config.rounds + 1) + turn + 1, total)
    return tasks


def _turn(
    engine: "BenchEngine", config: SpeculationBenchConfig, prompt: list[int], row: Row
) -> dict[str, float]:
    prompts, lengths = [prompt] * row.requests, [config.output_len] * row.requests
    speculator, speeds = engine.speculator, {}
    for name in ("plain", "guessing"):
        # One that knows nothing: what came in the last round is no help.
        engine.speculator = deepcopy(speculator) if name == "guessing" else None
        before = engine.stats()
        seconds, tokens = engine.run_decode(prompts, lengths, row.work.temperature)
        after = engine.stats()
        speeds[name] = tokens / seconds
    engine.speculator = speculator
    row.steps = after.num_steps - before.num_steps
    row.tokens = row.requests * config.output_len
    row.drafted = after.spec_draft_tokens - before.spec_draft_tokens
    row.accepted = after.spec_accepted_tokens - before.spec_accepted_tokens
    return speeds


def speculation_table(rows: Sequence[Row]) -> str:
    servers = list(dict.fromkeys(name for row in rows for name in row.speeds))[2:]
    head = ["work", "requests", "plain tok/s", "guessing tok/s", "ratio", "accepted"]
    head += [f"{name} tok/s" for name in servers] + [f"x {name}" for name in servers]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for row in rows:
        share = f"{row.accepted} of {row.drafted}" if row.drafted else "none guessed"
        cells = [
            f"{row.work.name}: {row.work.what}",
            str(row.requests),
            f"{row.median('plain'):.0f}",
            f"{row.median('guessing'):.0f}",
            f"{row.ratio('guessing', 'plain'):.2f}",
            share,
        ]
        there = [name for name in servers if name in row.speeds]
        cells += [f"{row.median(name):.0f}" if name in there else "" for name in servers]
        cells += [f"{row.ratio('guessing', name):.2f}" if name in there else "" for name in servers]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
