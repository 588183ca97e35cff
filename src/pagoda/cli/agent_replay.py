"""`pagoda agent replay RUN`: the recorded actions again, while the screen looks as it did."""

import argparse

from pagoda.cli.agent_flags import add_driver, add_runs, runs_folder

USAGE = "RUN --driver URL [--secrets FILE] [--runs-dir DIR]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run's name, as its folder is called")
    add_driver(parser)
    add_runs(parser)


def run(args: argparse.Namespace) -> int:
    import asyncio

    return asyncio.run(_replay(args))


async def _replay(args: argparse.Namespace) -> int:
    from pagoda.agent.drivers.registry import make_driver
    from pagoda.agent.replay import RecordedStep, replay
    from pagoda.agent.secrets import Secrets

    def report(step: RecordedStep) -> None:
        names = ", ".join(type(action).__name__ for action in step.actions)
        print(f"step {step.number}: {names}", flush=True)

    secrets = Secrets.load(args.secrets)
    driver = make_driver(args.driver)
    await driver.open()
    try:
        count = await replay(runs_folder(args) / args.run, driver, secrets.reveal, report=report)
    finally:
        await driver.close()
    print(f"{count} steps were done again.")
    return 0
