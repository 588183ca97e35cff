import argparse
import os
import sys
import time
from pathlib import Path

from tools.gpu_check import __doc__ as about
from tools.gpu_check.found import FAULTS
from tools.gpu_check.plan import TOTAL, models_stages, stages
from tools.gpu_check.report import report
from tools.gpu_check.run import Runner


def main() -> int:
    """1 where anything is to be fixed that is not just slow."""
    begun = time.time()
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_check", description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("build/gpu-check"), help="a folder")
    parser.add_argument("--seconds", type=float, default=TOTAL, help="that all of it may take")
    parser.add_argument("--only", default="", help="phases whose names begin so")
    parser.add_argument("--models", action="store_true", help="the tests of models instead")
    parser.add_argument("--play", action="store_true", help="on a CPU, in small")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="PHASE=KIND",
        help=f"with --play: have a phase suffer this ({', '.join(FAULTS)}), to test the rest",
    )  # fmt: skip
    options = parser.parse_args()
    faults = dict(fault.rsplit("=", 1) for fault in options.fault)
    at_once = 2 if options.play else max(2, min(12, (os.cpu_count() or 2) - 2))
    planned = models_stages if options.models else stages
    chosen = tuple(
        stage._replace(
            phases=tuple(one for one in stage.phases if one.name.startswith(options.only))
        )
        for stage in planned(options.play, at_once)
    )
    runner = Runner(
        options.out, begun + options.seconds, options.play, faults,
        tell=lambda line: print(f"{time.time() - begun:4.0f} s  {line}", flush=True),
    )  # fmt: skip
    records = runner.run(chosen)
    text, faulty = report(records)
    (options.out / "report.md").write_text(text + "\n")
    print(text)
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
