"""`pagoda bench llama-bench`, with llama-bench's own flags."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagoda.base.errors import ConfigError
from pagoda.base.log import get_logger, setup_logging
from pagoda.base.machine import cpu_facts
from pagoda.bench.llama_bench import (
    Measurement,
    Setup,
    Task,
    describe_model,
    engine_config,
    field_values,
    measure,
    parse_list,
    parse_pair,
    plan_tests,
    setups,
)
from pagoda.bench.llama_tables import FORMATS, Row
from pagoda.config.engine import DeviceConfig, EngineConfig, ModelConfig
from pagoda.config.flags import reader
from pagoda.version import __version__

if TYPE_CHECKING:
    from pagoda.bench.inprocess import BenchEngine

USAGE = "[-m MODEL] [-p N] [-n N] [-r N] [-t N] [-o FORMAT] [flags]"
# llama-bench's flags for placing a model: one value each, and nothing to place here.
_NO_EFFECT = (
    "-ngl --n-gpu-layers", "-ncmoe --n-cpu-moe", "-sm --split-mode", "-mg --main-gpu",
    "-nkvo --no-kv-offload", "-fa --flash-attn", "-mmp --mmap", "-dio --direct-io",
    "-lzm --lazy-mode", "-embd --embeddings", "-ts --tensor-split", "-ot --override-tensor",
    "-nopo --no-op-offload", "--no-host", "--repack", "-ctk --cache-type-k",
    "-ctv --cache-type-v", "-C --cpu-mask", "--cpu-strict", "--poll", "--numa", "--prio",
    "-fitt --fit-target", "-fitc --fit-ctx", "-rpc --rpc", "--delay",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    numbers: dict[str, Any] = {"type": reader(parse_list), "action": "extend", "metavar": "N,N"}
    parser.add_argument("-m", "--model", action="append", help="model (default: smollm2)")
    parser.add_argument(
        "-hf", "-hfr", "--hf-repo", action="append", dest="hf", metavar="REPO",
        help="model of the hub, as org/name[:QUANT]",
    )  # fmt: skip
    parser.add_argument("-p", "--n-prompt", help="prompt tokens (default: 512)", **numbers)
    parser.add_argument("-n", "--n-gen", help="generated tokens (default: 128)", **numbers)
    parser.add_argument(
        "-pg", type=reader(parse_pair), action="append", default=[], metavar="PP,TG",
        help="a prompt, then generation",
    )  # fmt: skip
    parser.add_argument("-d", "--n-depth", help="tokens already cached (default: 0)", **numbers)
    parser.add_argument("-b", "--batch-size", help="(default: 2048)", **numbers)
    parser.add_argument("-ub", "--ubatch-size", help="tokens per step (default: 512)", **numbers)
    parser.add_argument("-t", "--threads", help="(default: all usable)", **numbers)
    parser.add_argument(
        "-r", "--repetitions", type=int, default=5, metavar="N",
        help="how often each is measured (default: 5)",
    )  # fmt: skip
    parser.add_argument("-o", "--output", choices=FORMATS, default="md", help="(default: md)")
    parser.add_argument("-oe", "--output-err", choices=FORMATS, help="a second format, on stderr")
    parser.add_argument("--no-warmup", action="store_true", help="time the first run too")
    parser.add_argument("--progress", action="store_true", help="say what runs")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the engine's log")
    parser.add_argument(
        "-dev", "--device", choices=("auto", "cpu", "cuda"), default="auto",
        help="where the model runs (default: auto)",
    )  # fmt: skip
    parser.add_argument("--dtype", default="auto", help="type of activations")
    for flags in _NO_EFFECT:
        names = flags.split()
        dest = f"unused {names[-1]}"
        parser.add_argument(*names, dest=dest, nargs="?", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    setup_logging("info" if args.verbose else "warning")
    _answer_unused(args)
    tests = plan_tests(args.n_prompt or [512], args.n_gen or [128], args.pg, args.n_depth or [0])
    if not tests or args.repetitions < 1:
        raise ConfigError("There is nothing to measure; -p, -n or -pg must be above 0.")
    models = [*(args.model or ()), *(f"hf:{name}" for name in args.hf or ())] or ["smollm2"]
    rows = [row for model in models for row in _bench_model(model, tests, args)]
    print(FORMATS[args.output](rows, __version__))
    if args.output_err:
        print(FORMATS[args.output_err](rows, __version__), file=sys.stderr)
    return 0


def _bench_model(ref: str, tests: list[Task], args: argparse.Namespace) -> Iterable[Row]:
    from pagoda.bench.inprocess import BenchEngine
    from pagoda.engine.served.text_side import fetch_model
    from pagoda.weights.files import open_model

    path = Path(fetch_model(ModelConfig(model=ref)).model)
    facts, cpu = describe_model(open_model(path), ref), cpu_facts()
    base = EngineConfig(
        model=ModelConfig(model=str(path), dtype=args.dtype),
        device=DeviceConfig(device=args.device),
    )
    threads = args.threads or [cpu.num_threads]
    for setup in setups(args.batch_size or [2048], args.ubatch_size or [512], threads):
        engine = BenchEngine.start(engine_config(base, setup, tests))
        try:
            for test in tests:
                started, samples = _measure(engine, test, setup, args)
                result = Measurement(test, setup, facts, started, samples)
                yield result, field_values(result, _device(args), cpu.name, __version__)
        finally:
            engine.close()


def _measure(
    engine: "BenchEngine", test: Task, setup: Setup, args: argparse.Namespace
) -> tuple[str, list[int]]:
    def progress(text: str) -> None:
        if args.progress:
            print(f"pagoda bench: {text} ({setup.n_threads} threads)", file=sys.stderr)

    return measure(
        engine, test, repetitions=args.repetitions, warmup=not args.no_warmup, progress=progress
    )


def _device(args: argparse.Namespace) -> str:
    return "cpu" if args.device == "auto" else str(args.device)


def _answer_unused(args: argparse.Namespace) -> None:
    log = get_logger("cli.bench")
    for name, value in vars(args).items():
        if name.startswith("unused ") and value is not None:
            log.warning("%s %s has no effect here.", name.removeprefix("unused "), value)
