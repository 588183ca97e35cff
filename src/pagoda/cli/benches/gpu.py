"""`pagoda bench gpu`."""

import argparse
import json
import shlex
import sys
import time
from pathlib import Path

from pagoda.base.errors import ConfigError
from pagoda.base.words import say
from pagoda.bench.gpus.models import MODELS, GpuModel

USAGE = "[MODEL ...] [--without-transformers] [--output FILE]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(model.name for model in MODELS)
    what = say("(default: all of {models})", models=names)
    parser.add_argument("models", metavar="MODEL", nargs="*", help=what)
    parser.add_argument(
        "--output", "-o", metavar="FILE",
        help="page whose part between the marks is written anew, such as docs/benchmarks/gpu.md",
    )  # fmt: skip
    parser.add_argument(
        "--without-transformers", action="store_true", help="leave out what it is compared with"
    )
    parser.add_argument("--worker", choices=("pagoda", "transformers"), help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    from pagoda.runtime.device import make_device

    models = _chosen(args.models)
    try:
        device = make_device("cuda")
    except ConfigError:
        print("No NVIDIA GPU that torch can use is here; nothing was measured.", file=sys.stderr)
        return 1
    from pagoda.bench.gpus.report import replaced, tables
    from pagoda.bench.gpus.run import (
        Measured,
        measure_all,
        measure_ceilings,
        usual_type,
        worker,
    )

    if args.worker is not None:
        print(json.dumps(worker(args.worker, models[0], device)))
        return 0
    page = Path(args.output).read_text() if args.output else ""
    ceilings = measure_ceilings(device, usual_type(device))
    about, results = _about(device.facts().name, args), list[Measured]()
    for result in measure_all(models, beside_transformers=not args.without_transformers):
        results.append(result)
        text = tables(results, ceilings, about)
        # What is measured stays, whatever becomes of the models behind it.
        if args.output:
            Path(args.output).write_text(replaced(page, text))
        print(text if len(results) == len(models) else text.splitlines()[-1], flush=True)
    return 0


def _chosen(names: list[str]) -> tuple[GpuModel, ...]:
    by_name = {model.name.lower(): model for model in MODELS}
    unknown = [name for name in names if name.lower() not in by_name]
    if unknown:
        known = ", ".join(model.name for model in MODELS)
        raise ConfigError(f"{unknown[0]!r} is none of the models: {known}.")
    return tuple(by_name[name.lower()] for name in names) or MODELS


def _about(gpu: str, args: argparse.Namespace) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    from pagoda.version import __version__

    versions = [f"pagoda {__version__}"]
    for package in ("torch", "triton", "transformers"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"no {package}")
    words = ["pagoda", "bench", "gpu", *args.models]
    words += ["--without-transformers"] if args.without_transformers else []
    words += ["--output", args.output] if args.output else []
    return {
        "GPU": gpu,
        "date": time.strftime("%Y-%m-%d"),
        "versions": ", ".join(versions),
        "command": f"`{shlex.join(words)}`",
    }
