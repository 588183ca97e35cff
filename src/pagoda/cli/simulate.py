"""`pagoda simulate`: how replicas of a model would serve a load, without computing it."""

import argparse
import gc
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pagoda.base.errors import CapacityError, ConfigError
from pagoda.base.printable import for_terminal
from pagoda.base.words import say, tell, told
from pagoda.cli.bars import CountBar
from pagoda.config.compat import add_compat_flags
from pagoda.config.flags import (
    add_engine_flags,
    add_flags,
    engine_config,
    from_namespace,
    with_config_file,
)
from pagoda.core.routing import ROUTERS
from pagoda.simulate.traces import MadeUp, TraceFileConfig, UsersConfig, read_trace

if TYPE_CHECKING:
    from pagoda.doctor.answer import Answer
    from pagoda.planner.devices.step_table import StepPoint, StepProfile
    from pagoda.simulate.goals import Goal, Hopeless
    from pagoda.simulate.replica import Machine
    from pagoda.simulate.traces import Trace
    from pagoda.simulate.world import Outcome

USAGE = "MODEL (--gpu NAME | --profile FILE) [--trace FILE] [--replicas N | --goal GOAL] [flags]"
USUAL = (
    "--gpu",
    "--profile",
    "--replicas",
    "--router",
    "--goal",
    "--trace",
    "--users",
    "--request-rate",
    "--input-len",
    "--output-len",
    "--price",
    "--json",
)
EPILOG = (
    "The scheduler and the KV cache are those of `pagoda serve`, on a clock that is simulated. "
    "Steps take what a profile of this machine says (`pagoda bench step-times`), or what is "
    "foretold of GPUs by name."
)

_REQUESTS = say("requests")
# Of a quick run no progress is shown, and one of few requests is over before processes start.
_QUICK_SECONDS, _MANY = 2.0, 500

prepare = with_config_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.conflict_handler = "resolve"  # a seed of users takes the place of the engine's
    add_engine_flags(parser)
    add_compat_flags(parser)
    group = parser.add_argument_group("simulate")
    group.add_argument("--gpu", metavar="NAME", help="of each replica, such as A100-80G or H100x4")
    group.add_argument(
        "--profile", type=Path, metavar="FILE",
        help="step times measured on this machine with `pagoda bench step-times`",
    )  # fmt: skip
    group.add_argument(
        "--replicas", type=int, metavar="N", help="how many replicas serve (default: 1)"
    )
    group.add_argument(
        "--router", choices=ROUTERS, default="prefix-aware",
        help="which replica a request goes to (default: prefix-aware)",
    )  # fmt: skip
    group.add_argument(
        "--goal", action="append", default=[], metavar="GOAL",
        help="find the fewest replicas for it, such as 'p99 ttft < 2s'; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--price", type=float, metavar="N", help="of a replica for an hour, in any currency"
    )
    group.add_argument("--json", action="store_true", help="everything as JSON")
    add_flags(parser, TraceFileConfig)
    add_flags(parser, UsersConfig)


def run(args: argparse.Namespace) -> int:
    from pagoda.simulate.goals import parse_goal

    goals = [parse_goal(text) for text in args.goal]
    if goals and args.replicas is not None:
        raise ConfigError("--goal finds the number of replicas; leave out --replicas.")
    if (args.replicas or 1) < 1 or (args.price or 0) < 0:
        raise ConfigError("--replicas is at least 1, and --price at least 0.")
    if (args.gpu is None) == (args.profile is None):
        raise ConfigError(
            "Say where step times come from: --gpu NAME, or --profile FILE, which "
            "`pagoda bench step-times MODEL --output FILE` writes on this machine."
        )
    trace = _trace(args)
    machine = _machine(args)
    if machine.engines > 1 and (goals or args.replicas is not None):
        raise ConfigError(
            "--data-parallel-size says how many engines share one machine; leave out --replicas "
            "and --goal."
        )
    if goals:
        return _find(args, machine, trace, goals)
    outcome = _run(args, machine, trace, args.replicas or machine.engines)
    _say(args, outcome, [], [])
    return 0


def _find(args: argparse.Namespace, machine: "Machine", trace: "Trace", goals: "list[Goal]") -> int:
    from pagoda.simulate.goals import replicas_for

    best, tried = replicas_for(
        goals,
        lambda count, hopeless: _run(args, machine, trace, count, hopeless),
        trace.num_requests,
    )
    _say(args, best or tried[-1], goals, tried)
    if best is None:
        print(
            tell("No number of replicas meets the goal: each would miss it alone."),
            file=sys.stderr,
        )
    return int(best is None)


def _run(
    args: argparse.Namespace, machine: "Machine", trace: "Trace", count: int,
    hopeless: "Hopeless | None" = None,
) -> "Outcome":  # fmt: skip
    from pagoda.simulate.apart import are_apart, simulate_apart
    from pagoda.simulate.world import Fleet, simulate

    fleet, total, began = Fleet(machine, count, args.router), trace.num_requests, time.monotonic()
    apart = hopeless is None and total >= _MANY and are_apart(trace, fleet)
    gc.disable()  # requests are in no cycles; looking for some takes a tenth of the time
    try:
        with CountBar(told(_REQUESTS), show=sys.stderr.isatty()) as bar:

            def progress(done: int) -> None:
                if time.monotonic() - began > _QUICK_SECONDS:
                    bar.update(done, total)

            if apart:
                return simulate_apart(trace, fleet, progress=progress)
            return simulate(trace, fleet, is_hopeless=hopeless, progress=progress)
    finally:
        gc.enable()


def _say(
    args: argparse.Namespace, outcome: "Outcome", goals: "list[Goal]", tried: "list[Outcome]"
) -> None:
    from pagoda.simulate.report import as_json, lines, tried_lines

    if refusal := outcome.records.refusal[1]:
        print(
            tell(
                "{count:,} requests were refused; the last one: {refusal}",
                count=outcome.records.num_refused, refusal=refusal,
            ),
            file=sys.stderr,
        )  # fmt: skip
    found = as_json(outcome, goals, args.price)
    if args.json:
        found["tried"] = [one.fleet.replicas for one in tried]
        print(json.dumps(found, indent=2))
        return
    print(for_terminal("\n".join([*tried_lines(tried, goals), *lines(found)])))


def _trace(args: argparse.Namespace) -> "Trace":
    config = from_namespace(TraceFileConfig, args)
    users = from_namespace(UsersConfig, args)
    return MadeUp(users) if config.trace is None else read_trace(config)


def _machine(args: argparse.Namespace) -> "Machine":
    """One replica as `pagoda serve` would plan it. Raises CapacityError where it does not fit."""
    from pagoda.doctor import ask
    from pagoda.planner.devices.step_table import StepTable
    from pagoda.planner.limits import scheduler_limits
    from pagoda.simulate.replica import Machine
    from pagoda.simulate.sharing import Sharing

    config = engine_config(args)
    if config.parallel.pipeline_parallel_size > 1:
        raise ConfigError(
            "pagoda simulate knows no times of a pipeline's stages: leave out "
            "--pipeline-parallel-size, or split layers with --tensor-parallel-size."
        )
    question = ask.Question.of(config, argparse.Namespace(gpu=args.gpu, users=None))
    (answer,) = ask.answers(question, [config.model.model], None)
    resolution = answer.resolution
    if resolution is None:
        raise CapacityError(answer.problem)
    plan = resolution.plan
    if not plan.groups:
        raise ConfigError("This model writes no text (an encoder); there is nothing to simulate.")
    profile, engines = _profile(args), config.parallel.data_parallel_size
    shared = answer.hardware.facts.device == "cpu"
    points = _foretold(answer) if profile is None else profile.points
    return Machine(
        scheduler_limits(resolution.config),
        plan.groups,
        plan.num_slabs,
        plan.kv_tokens,
        StepTable(points),
        steps_in_flight=1 if answer.hardware.facts.device == "cpu" else 2,
        enable_prefix_caching=resolution.config.cache.enable_prefix_caching,
        sharing=Sharing() if profile is None else Sharing.of(profile, engines if shared else 1),
        engines=engines,
    )


def _profile(args: argparse.Namespace) -> "StepProfile | None":
    """What was measured, if it is to be used."""
    from pagoda.planner.devices.step_table import read_profile

    if args.profile is None:
        return None
    profile, model = read_profile(args.profile), engine_config(args).model.model
    if profile.model != model:
        print(
            tell(
                "{profile} was measured with {other}, not {model}.",
                profile=args.profile, other=profile.model, model=model,
            ),
            file=sys.stderr,
        )  # fmt: skip
    return profile


def _foretold(answer: "Answer") -> "list[StepPoint]":
    from pagoda.doctor.speeds import gpu_part
    from pagoda.planner.devices.gpu_steps import gpu_points
    from pagoda.planner.limits import scheduler_limits

    resolution = answer.resolution
    assert resolution is not None  # it fits
    part = gpu_part(answer.subject, resolution, answer.hardware)
    assert part is not None  # it is named
    sizes = [size.tokens for size in resolution.captured_sizes if size.prompts]
    limits = scheduler_limits(resolution.config)
    return list(gpu_points(part, limits, max(sizes, default=0)))
