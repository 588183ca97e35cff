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
    from pagoda.base.words import tell

    port = args.port if args.place is None else args.place
    server = runfile.find(port)
    if server is None:
        said = tell("No Pagoda server of yours runs on port {port}.", port=port)
        for other in runfile.running():
            said += tell(" One runs on port {port}: `pagoda stop {port}`.", port=other.port)
        print(said, file=sys.stderr)
        return 1
    with contextlib.suppress(ProcessLookupError):  # gone by now: that is what was wanted
        os.kill(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + args.timeout
    while time.monotonic() < deadline:
        if runfile.find(port) != server:
            print(tell("The server on port {port} has stopped.", port=port))
            return 0
        time.sleep(_LOOK_EVERY)
    said = tell(
        "The server on port {port} (process {pid}) still runs after {seconds:g} s; it finishes its "
        "requests, or `kill -9 {pid}` ends it.",
        port=port, pid=server.pid, seconds=args.timeout,
    )  # fmt: skip
    print(said, file=sys.stderr)
    return 1
