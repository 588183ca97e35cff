"""`pagoda agent mcp`: tools for other programs' models, over standard input and output."""

import argparse

from pagoda.cli.agent_flags import add_operator, make_operator

USAGE = "[--driver URL] [--allow KIND ...] [flags]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_operator(parser)
    parser.add_argument(
        "--allow",
        nargs="+",
        default=[],
        metavar="KIND",
        help="kinds of actions that need no consent: power, secure-keys, close, command, commit, "
        "secret, address",
    )


def run(args: argparse.Namespace) -> int:
    import asyncio

    return asyncio.run(_serve(args))


async def _serve(args: argparse.Namespace) -> int:
    from pagoda.agent.mcp_server import make_server
    from pagoda.agent.policy import Category
    from pagoda.base.errors import ConfigError
    from pagoda.base.log import setup_logging

    setup_logging("warning")
    unknown = set(args.allow) - {category.value for category in Category}
    if unknown:
        raise ConfigError(f"--allow {' '.join(sorted(unknown))}: there are {', '.join(Category)}.")
    operator = make_operator(args)
    await operator.open()
    try:
        server = make_server(operator, [Category(name) for name in args.allow])
        await server.run_stdio_async()
    finally:
        await operator.close()
    return 0
