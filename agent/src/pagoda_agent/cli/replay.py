"""`pagoda agent replay RUN`: the recorded actions again, while the screen looks as it did."""

import argparse

from pagoda_agent.cli.flags import (
    add_driver,
    add_run,
    add_runs,
    add_setting,
    find_run,
    load_settings,
    named_driver,
)
from pagoda_agent.words import told

USAGE = "RUN [--driver URL] [--consent LEVEL] [--secrets FILE] [--runs-dir DIR]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_driver(parser)
    add_runs(parser)
    add_setting(parser, "consent")


def run(args: argparse.Namespace) -> int:
    import asyncio

    return asyncio.run(replay_run(args))


async def replay_run(args: argparse.Namespace) -> int:
    """Raises what `replay` does, and ReplayError where consent is wanted and nobody is there."""
    from dataclasses import replace as with_changes

    from pagoda_agent.cli.keyboard import Keyboard
    from pagoda_agent.consent.reasons import Reason
    from pagoda_agent.runs.replay import RecordedStep, ReplayError, replay
    from pagoda_agent.secrets import Secrets
    from pagoda_agent.task.claim import claim, line_memory

    def report(step: RecordedStep) -> None:
        names = ", ".join(type(action).__name__ for action in step.actions)
        print(told(f"step {step.number}: {names}"), flush=True)

    keyboard = Keyboard()

    async def allow(step: RecordedStep, reason: Reason) -> bool:
        if not keyboard.there:
            raise ReplayError(
                f"Step {step.number} wants your consent: {reason} Replay it in a terminal, where "
                "you can be asked."
            )
        reply = await keyboard.ask(f"{reason} Allow it? [y/N] ")
        return (reply or "").strip().lower() in ("y", "yes")

    folder = find_run(args)
    secrets, settings = Secrets.load(args.secrets), load_settings(args)
    driver = named_driver(settings)
    with claim(driver.target):
        memory = line_memory(driver.target, secrets.redact)
        policy = with_changes(settings.make_policy(secrets.names), memory=memory)
        await driver.open()
        try:
            count = await replay(
                folder, driver, secrets.reveal, report=report, policy=policy, allow=allow
            )
        finally:
            keyboard.close()
            await driver.close()
    print(told(f"{count} steps were done again."))
    return 0
