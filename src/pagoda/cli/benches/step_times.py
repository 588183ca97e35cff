"""`pagoda bench step-times`."""

import argparse
from pathlib import Path

from pagoda.bench.step_times import StepTimesConfig, step_times
from pagoda.cli.bars import CountBar
from pagoda.cli.talk.own_engine import add_own_engine_flags, own_engine
from pagoda.config.flags import add_flags, engine_config, from_namespace
from pagoda.planner.devices.step_table import StepProfile, write_profile

USAGE = "[MODEL] --output FILE [--requests N] [--prompt-tokens N] [--context N] [flags]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_own_engine_flags(parser)
    add_flags(parser, StepTimesConfig)
    parser.add_argument(
        "--output", "-o", type=Path, required=True, metavar="FILE", help="where the profile goes"
    )


def run(args: argparse.Namespace) -> int:
    config = from_namespace(StepTimesConfig, args)
    name = engine_config(args).model.model
    args.enable_prefix_caching = True  # contexts are read once, and then timed behind
    with own_engine(args, max_model_len=config.longest) as engine, CountBar("sizes") as bar:
        points = step_times(engine, config, bar.update)
        device = engine.ready.device
    write_profile(args.output, StepProfile(name, device, points))
    print(f"{len(points)} step times of {name} are in {args.output}.")
    return 0
