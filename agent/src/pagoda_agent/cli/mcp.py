"""`pagoda agent mcp`: tools for other programs' models, over standard input and output."""

import argparse
import sys
from pathlib import Path

from pagoda_agent.cli.flags import add_operator, make_operator
from pagoda_agent.cli.name import command
from pagoda_agent.words import told

USAGE = "[--driver URL] [--allow KIND ...] [flags]"
_WAITS = (
    "Waiting for an MCP client on standard input; Ctrl-C ends it. Clients start this command "
    "themselves: configure it there as {command}"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_operator(parser)
    parser.add_argument(
        "--allow",
        nargs="+",
        default=[],
        metavar="KIND",
        help="kinds of actions that need no consent: power, secure-keys, close, command, line, "
        "commit, secret, address, input",
    )


def run(args: argparse.Namespace) -> int:
    import asyncio

    return asyncio.run(_serve(args))


def _configuration(words: list[str]) -> str:
    """What clients' files of servers want, for this command line; they know no activated venv."""
    import json

    program = str(Path(sys.executable).with_name(command().split()[0]))
    return json.dumps({"mcpServers": {"pagoda": {"command": program, "args": words}}})


async def _serve(args: argparse.Namespace) -> int:
    import asyncio
    import os
    import signal

    from pagoda_agent.base.errors import ConfigError
    from pagoda_agent.base.log import setup_logging

    try:
        from pagoda_agent.service.mcp_server import make_server
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"`{command()} mcp` needs the Python package {error.name!r}: "
            "pip install './agent[mcp]'."
        ) from error
    from pagoda_agent.consent.policy import Category

    setup_logging("warning")
    unknown = set(args.allow) - {category.value for category in Category}
    if unknown:
        raise ConfigError(f"--allow {' '.join(sorted(unknown))}: there are {', '.join(Category)}.")
    operator = make_operator(args)
    await operator.open()
    if sys.stdin.isatty():
        said = told(_WAITS.format(command=_configuration(sys.argv[1:])))
        print(said, file=sys.stderr, flush=True)
    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    try:
        server = make_server(operator, [Category(name) for name in args.allow])
        serving = asyncio.create_task(server.run_stdio_async())
        interrupt = asyncio.create_task(interrupted.wait())
        await asyncio.wait([serving, interrupt], return_when=asyncio.FIRST_COMPLETED)
    finally:
        await operator.close()
    if not serving.done():
        # A thread of the server reads standard input, and would be waited for until a line comes.
        os._exit(128 + signal.SIGINT)
    serving.result()
    return 0
