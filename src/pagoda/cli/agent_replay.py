"""`pagoda agent replay RUN`: the recorded actions again, while the screen looks as it did."""

import argparse

from pagoda.cli.agent_flags import (
    add_driver,
    add_run,
    add_runs,
    load_settings,
    named_driver,
    runs_folder,
)

USAGE = "RUN [--driver URL] [--secrets FILE] [--runs-dir DIR]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_driver(parser)
    add_runs(parser)


def run(args: argparse.Namespace) -> int:
    import asyncio

    return asyncio.run(_replay(args))


async def _replay(args: argparse.Namespace) -> int:
    from pagoda.agent.claim import claim
    from pagoda.agent.replay import RecordedStep, replay
    from pagoda.agent.secrets import Secrets

    def report(step: RecordedStep) -> None:
        names = ", ".join(type(action).__name__ for action in step.actions)
        print(f"step {step.number}: {names}", flush=True)

    secrets = Secrets.load(args.secrets)
    driver = named_driver(load_settings(args))
    with claim(driver.target):
        await driver.open()
        try:
            folder = runs_folder(args) / args.run
            count = await replay(folder, driver, secrets.reveal, report=report)
        finally:
            await driver.close()
    print(f"{count} steps were done again.")
    return 0
