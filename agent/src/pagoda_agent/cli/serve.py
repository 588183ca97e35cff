"""`pagoda agent serve`: the agent behind its page."""

import argparse

from pagoda_agent.cli.flags import add_operator, make_operator, settings_path
from pagoda_agent.words import told

USAGE = "[--driver URL] [flags]"
_PORT = 5000
_BEYOND = (
    "From another machine, open it with this one's IP address as the host. It is http, which "
    "whoever is on the way can read: better an SSH tunnel, or an https proxy in front."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_operator(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=_PORT, help=f"port to listen on ({_PORT})")
    parser.add_argument(
        "--keep", action="store_true", help="go on, paused, when the page is closed"
    )
    parser.add_argument(
        "--allow-install",
        action="store_true",
        help="let the page install a driver's packages although other machines reach it",
    )


def run(args: argparse.Namespace) -> int:
    import asyncio

    return asyncio.run(_serve(args))


async def _serve(args: argparse.Namespace) -> int:
    from pagoda_agent.base.errors import ConfigError
    from pagoda_agent.base.log import setup_logging
    from pagoda_agent.service.app import Service
    from pagoda_agent.service.gate import Gate
    from pagoda_agent.service.listen import is_loopback, listen
    from pagoda_agent.service.server import Server

    if not 0 <= args.port <= 65535:
        raise ConfigError(f"--port {args.port} must be from 0 to 65535.")
    setup_logging("info")
    operator = make_operator(args, absent=True)
    listener = listen(args.host, args.port)
    await operator.open()

    def stop() -> None:
        server.should_exit = True

    gate = Gate(args.host, listener.getsockname()[1])
    service = Service(
        operator, gate, settings_path(), stop, exits_with_page=not args.keep,
        installs=args.allow_install or is_loopback(listener),
    )  # fmt: skip
    server = Server(service)
    print(told(f"Open {gate.address} (it works once)"), flush=True)
    if not is_loopback(listener):
        print(told(_BEYOND), flush=True)
    await server.serve([listener])
    return 0
