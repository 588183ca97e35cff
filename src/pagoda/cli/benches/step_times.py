"""`pagoda bench step-times`."""

import argparse
import tempfile
from pathlib import Path

import msgspec

from pagoda.base.machine import usable_threads
from pagoda.bench.shared_machine import beside, served
from pagoda.bench.step_times import StepTimesConfig, step_times
from pagoda.cli.bars import CountBar
from pagoda.cli.talk.own_engine import add_own_engine_flags, own_config, own_engine
from pagoda.config.engine import EngineConfig
from pagoda.config.flags import add_flags, engine_config, from_namespace
from pagoda.planner.devices.step_table import StepProfile, StepTable, write_profile

_SERVER = "pagoda.cli.benches.given_server"
USAGE = "[MODEL] --output FILE [--requests N] [--prompt-tokens N] [--context N] [flags]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_own_engine_flags(parser)
    add_flags(parser, StepTimesConfig)
    parser.add_argument(
        "--output", "-o", type=Path, required=True, metavar="FILE", help="where the profile goes"
    )


def run(args: argparse.Namespace) -> int:
    config = from_namespace(StepTimesConfig, args)
    given = engine_config(args)
    name, engines = given.model.model, given.parallel.data_parallel_size
    args.enable_prefix_caching = True  # contexts are read once, and then timed behind
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config"
        file.write_bytes(msgspec.json.encode(own_config(args, max_model_len=config.longest)))
        with own_engine(args, max_model_len=config.longest) as engine, CountBar("sizes") as bar:
            points = step_times(engine, config, bar.update)
            device = engine.ready.device
            shared = device == "cpu" and engines > 1
            others = beside(engine, file, engines) if shared else []
        profile = StepProfile(name, device, points)
        if device == "cpu":
            cores = usable_threads()
            profile = msgspec.structs.replace(
                profile,
                cores=cores,
                threads=_threads(given, cores),
                beside=others,
                served=served([str(file)], (_SERVER,), StepTable(points)),
            )
    write_profile(args.output, profile)
    print(f"{len(points)} step times of {name} are in {args.output}.")
    return 0


def _threads(config: EngineConfig, cores: int) -> int:
    """Those of one engine, as `planner/parallel.py` divides them."""
    threads = config.device.threads
    total = threads if isinstance(threads, int) else cores
    return max(1, total // config.parallel.data_parallel_size)
