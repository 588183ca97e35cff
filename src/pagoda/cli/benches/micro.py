"""`pagoda bench micro`."""

import argparse

from pagoda.base.errors import ConfigError
from pagoda.base.machine import cpu_facts
from pagoda.cli.bars import CountBar

USAGE = "[--only TEXT] [--threads N] [--seconds S] [--json]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT",
        help="kernels whose line has this text, such as `135M qkv Q4_1`; may be repeated",
    )  # fmt: skip
    parser.add_argument("--threads", "-t", type=int, help="(default: all usable)")
    parser.add_argument(
        "--seconds", type=float, default=0.1, metavar="S", help="per kernel (default: 0.1)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from pagoda.kernels import cpu

    facts = cpu_facts()
    threads = facts.num_threads if args.threads is None else args.threads
    if threads < 1 or args.seconds < 0:
        raise ConfigError("--threads must be at least 1, and --seconds at least 0.")
    cpu.set_num_threads(threads)
    native = cpu.native()
    if native is None:
        raise ConfigError(
            "There are no native kernels to measure: they were not built, or PAGODA_CPU_ISA is "
            "none. Install a C++ compiler and install Pagoda again, or unset the variable."
        )
    from pagoda.bench.kernels.cases import all_cases
    from pagoda.bench.kernels.run import measure_ceilings, time_cases
    from pagoda.bench.kernels.tables import as_json, markdown

    cases = [case for case in all_cases() if _wanted(f"{case.kernel} {case.what}", args.only)]
    if not cases:
        raise ConfigError(f"No kernel's line has the text {args.only[0]!r}.")
    with CountBar("ceilings") as bar:
        ceilings = measure_ceilings(native, bar.update)
    with CountBar("kernels") as bar:
        timings = list(time_cases(cases, ceilings, args.seconds, bar.update))
    about = {"cpu": facts.name, "isa": native.isa, "threads": threads}
    print((as_json if args.json else markdown)(ceilings, timings, about))
    return 0


def _wanted(line: str, texts: list[str]) -> bool:
    return not texts or any(text in line for text in texts)
