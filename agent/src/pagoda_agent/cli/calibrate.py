"""`pagoda agent calibrate`: how far a model's clicks miss."""

import argparse

from pagoda_agent.cli.flags import add_settings, load_settings
from pagoda_agent.words import told

USAGE = "[--trials N] [--screen WxH] [flags]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=20, help="clicks to ask for (20)")
    parser.add_argument("--screen", default="1280x720", metavar="WxH", help="pixels (1280x720)")
    parser.add_argument("--seed", type=int, default=0, help="of the drawn screens")
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    import asyncio

    return asyncio.run(_calibrate(args))


async def _calibrate(args: argparse.Namespace) -> int:
    from pagoda_agent.base.errors import ConfigError
    from pagoda_agent.models.calibrate import Trial, calibrate
    from pagoda_agent.models.chosen import chosen_model

    screen = _screen(args.screen)
    if args.trials < 1:
        raise ConfigError(f"--trials {args.trials} must be at least 1.")
    _name, profile, model = await chosen_model(load_settings(args))

    def report(trial: Trial) -> None:
        off = trial.problem if trial.error is None else f"{trial.error:.0f} px off"
        verdict = "hit" if trial.hit else "missed"
        said = f"{verdict:<6} {trial.target.name} of {trial.target.size} px: {off}"
        print(told(said), flush=True)

    try:
        found = await calibrate(
            model, profile, trials=args.trials, screen=screen, seed=args.seed,
            report=report,
        )  # fmt: skip
    finally:
        await model.close()
    median = found.median_error()
    error = "" if median is None else f", median error {median:.1f} px"
    print(told(f"\nprofile {profile.name}: {100 * found.hit_rate:.0f}% hit{error}"))
    for size, (hits, count) in found.hits_by_size().items():
        print(told(f"  targets of {size} px: {hits} of {count}"))
    better = found.better_space(profile.space)
    if better is not None:
        said = f"Its clicks fit when positions count as {better.value!r}; use a profile that does."
        print(told(said))
    elif found.median_error() is None:
        print(told("No reply was understood as a click: try another --profile, or another model."))
    elif not found.hit_rate:
        print(told("It hits nothing: try another --profile, or a larger model, less quantized."))
    return 0 if found.hit_rate else 1


def _screen(text: str) -> tuple[int, int]:
    from pagoda_agent.base.errors import ConfigError

    width, _, height = text.partition("x")
    # The smallest that has room for all targets, and the largest that a picture's memory allows.
    if not all(size.isdecimal() and 360 <= int(size) <= 8192 for size in (width, height)):
        raise ConfigError(f"--screen {text} must be WIDTHxHEIGHT, each from 360 to 8192 pixels.")
    return int(width), int(height)
