"""`pagoda agent serve`: the agent behind its page."""

import argparse

from pagoda.cli.agent_flags import add_operator, make_operator, settings_path

USAGE = "[--driver URL] [flags]"
_PORT = 5000
# For streams to end by themselves, as those of a page that was closed do.
_LAST_SECONDS = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_operator(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=_PORT, help=f"port to listen on ({_PORT})")
    parser.add_argument(
        "--keep", action="store_true", help="go on, paused, when the page is closed"
    )


def run(args: argparse.Namespace) -> int:
    import asyncio

    return asyncio.run(_serve(args))


async def _serve(args: argparse.Namespace) -> int:
    import socket
    from functools import partial

    import uvicorn

    from pagoda.agent.service.app import Service
    from pagoda.agent.service.gate import Gate
    from pagoda.base.errors import ConfigError
    from pagoda.base.log import setup_logging
    from pagoda.web.site import Site

    setup_logging("info")
    operator = make_operator(args)
    await operator.open()
    try:
        family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
        listener = socket.create_server((args.host, args.port), family=family)
    except OSError as error:
        await operator.close()
        raise ConfigError(
            f"Port {args.port} of {args.host} cannot be had: {error.strerror}. --port takes "
            "another one."
        ) from error

    def stop() -> None:
        server.should_exit = True

    gate = Gate(args.host, listener.getsockname()[1])
    service = Service(operator, gate, settings_path(), stop, exits_with_page=not args.keep)
    app = service.app(wrap=partial(Site, page="agent"))
    config = uvicorn.Config(
        app, log_level="warning", ws="none", timeout_graceful_shutdown=_LAST_SECONDS
    )
    server = uvicorn.Server(config)
    print(f"Open {gate.address} (it works once)", flush=True)
    await server.serve([listener])
    return 0
