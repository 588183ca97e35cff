"""`python -m bench.peers`: Pagoda and its peers in turns on this machine's CPU."""

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.peers import plan
from bench.peers.contenders import (
    CONTENDERS,
    PICTURE_CONTENDERS,
    VECTOR_CONTENDERS,
    Contender,
    ik_contenders,
)
from bench.peers.models import BIG_FILES, GGUF_FILES, TOWER_FILES, VECTOR_FILES
from bench.peers.paths import RESULTS, ROOT
from bench.peers.report import rewrite, tables
from bench.peers.results import Results
from bench.peers.servers import KINDS, ServerKind

_TABLE = ROOT / "docs" / "benchmarks" / "cpu.md"


@dataclass(frozen=True)
class Choice:
    measures: tuple[str, ...]
    files: tuple[str, ...]
    contenders: tuple[Contender, ...]
    servers: tuple[ServerKind, ...]


def main() -> int:
    # Asked to end, it ends those too that it holds still.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args = _arguments()
    choice = _choose(args.only, args.ik_source)
    size = plan.QUICK if args.quick else plan.FULL
    if args.rounds:
        size = size.with_rounds(args.rounds)
    path = RESULTS / ("quick.json" if args.quick else "results.json")
    results = Results.load(path)
    begun = time.perf_counter()
    for section in _sections(choice, size, args.threads):
        results.add(section)
        results.save(path)
    processor = plan.processor()
    text = tables(results, processor)
    print(text)
    if not args.quick:
        rewrite(_TABLE, processor, text)
    print(f"{time.perf_counter() - begun:.0f} s; figures in {path}", file=sys.stderr)
    return 0


def _sections(choice: Choice, size: plan.Size, threads: int) -> "Iterator[plan.Section]":
    for file in choice.files:
        wanted = [name for name in plan.measures_of(file) if name in choice.measures]
        if wanted:
            yield from plan.measure_file(file, wanted, choice.contenders, size, threads)
    for name in plan.SERVER_MEASURES:
        if name in choice.measures:
            yield plan.measure_servers(name, choice.servers, size, threads)


def _choose(words: list[str], ik_source: Path | None) -> Choice:
    """Words of one kind limit that kind; a kind without a word is taken whole."""
    of_texts = (*CONTENDERS, *(ik_contenders(ik_source) if ik_source else ()))
    contenders = (*of_texts, *VECTOR_CONTENDERS, *PICTURE_CONTENDERS)
    kinds = {
        "measures": plan.MEASURES,
        "files": (*GGUF_FILES, *BIG_FILES, *VECTOR_FILES, *TOWER_FILES),
        "peers": tuple(dict.fromkeys(one.name for one in (*contenders, *KINDS))),
    }
    known = [name for names in kinds.values() for name in names]
    for word in words:
        if word not in known:
            sys.exit(f"There is no {word!r}; there are: {', '.join(known)}.")
    picked = {kind: tuple(n for n in names if n in words) or names for kind, names in kinds.items()}
    return Choice(
        picked["measures"],
        picked["files"],
        tuple(one for one in contenders if one.name in picked["peers"]),
        tuple(one for one in KINDS if one.name in picked["peers"]),
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=[], metavar="WORD,WORD",
        help="measures, files and peers to be taken, such as decode,q4_1,Pagoda,llama.cpp",
    )  # fmt: skip
    parser.add_argument(
        "--ik-source", type=Path, metavar="FOLDER",
        help="sources of ik_llama.cpp, which then takes part; no package has it",
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="small and once: shows that it works, measures nothing"
    )
    parser.add_argument("--rounds", type=int, help="turns that count, for each (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="of each (default: 2)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
