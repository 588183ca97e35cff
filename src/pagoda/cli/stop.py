"""`pagoda stop`: end a server of this machine."""

import argparse
import contextlib
import os
import signal
import sys
import time

USAGE = "[PORT] [--timeout SECONDS]"
_LOOK_EVERY = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", nargs="?", type=int, metavar="PORT", help="where it listens")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="default: 8000")
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS",
        help="how long to wait for it to end (default: 30)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from pagoda.base import runfile

    port = args.port if args.place is None else args.place
    server = runfile.find(port)
    if server is None:
        print(f"No Pagoda server of yours runs on port {port}.", file=sys.stderr)
        return 1
    with contextlib.suppress(ProcessLookupError):  # gone by now: that is what was wanted
        os.kill(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + args.timeout
    while time.monotonic() < deadline:
        if runfile.find(port) != server:
            print(f"The server on port {port} has stopped.")
            return 0
        time.sleep(_LOOK_EVERY)
    print(
        f"The server on port {port} (process {server.pid}) still runs after "
        f"{args.timeout:g} s; it finishes its requests, or `kill -9 {server.pid}` ends it.",
        file=sys.stderr,
    )
    return 1
