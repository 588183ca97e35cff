"""`pagoda run-batch`: answers a file of OpenAI batch requests."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagoda.base import env
from pagoda.base.errors import ConfigError, PagodaError
from pagoda.base.log import get_logger, setup_logging
from pagoda.base.words import tell
from pagoda.cli.bars import CountBar
from pagoda.cli.connect import add_base_url
from pagoda.config.compat import add_compat_flags, answers
from pagoda.config.flags import add_engine_flags, engine_config, with_config_file

if TYPE_CHECKING:
    import httpx

    from pagoda.cli.batch import Tally

USAGE = "-i IN.jsonl -o OUT.jsonl [MODEL | --base-url URL] [flags]"
USUAL = (
    "--input-file",
    "--output-file",
    "--base-url",
    "--api-key",
    "--concurrency",
    "--max-model-len",
    "--max-num-seqs",
    "--gpu-memory-utilization",
)
EPILOG = (
    "Without --base-url the model runs here, without HTTP. A run that was stopped goes on where it "
    "was: answered lines are skipped, lines that failed are asked again. "
    "The exit status is 1 if any line failed."
)
_CONCURRENCY = 128

prepare = with_config_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("batch")
    group.add_argument("-i", "--input-file", required=True, metavar="FILE", help="requests")
    group.add_argument("-o", "--output-file", required=True, metavar="FILE", help="results")
    add_base_url(group, "an OpenAI-compatible server, such as http://host:8000")
    group.add_argument("--api-key", metavar="KEY", help="key for the server; also PAGODA_API_KEY")
    group.add_argument(
        "--concurrency", type=int, default=_CONCURRENCY, metavar="N",
        help=f"requests at the same time (default: {_CONCURRENCY})",
    )  # fmt: skip
    add_engine_flags(parser)
    add_compat_flags(parser)


def run(args: argparse.Namespace) -> int:
    setup_logging("warning")
    log = get_logger("cli.run_batch")
    for line in answers(args):
        log.warning("%s", line)
    from pagoda.cli.batch import check_source, check_target

    source, target = Path(args.input_file), Path(args.output_file)
    if source.resolve() == target.resolve():
        raise ConfigError("Input and output are the same file.")
    if not source.is_file():
        raise ConfigError(f"There is no file {source}.")
    check_source(source)
    check_target(target)
    tally = asyncio.run(_run(args, source, target))
    said = tell(
        "{answered} answered, {failed} failed, {skipped} were done before; the results are in "
        "{target}.",
        answered=tally.answered, failed=tally.failed, skipped=tally.skipped, target=target,
    )  # fmt: skip
    print(said, file=sys.stderr)
    return 1 if tally.failed else 0


async def _run(args: argparse.Namespace, source: Path, target: Path) -> "Tally":
    from pagoda.cli.batch import run_batch

    try:
        async with _client(args) as client:
            with CountBar(tell("requests")) as bar:
                return await run_batch(
                    client, source, target, concurrency=args.concurrency, progress=bar.update
                )
    except* PagodaError as group:
        # All workers meet the same trouble; one report is enough.
        raise _first(group) from None


def _first(group: BaseExceptionGroup[PagodaError]) -> PagodaError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, PagodaError)
    return error


@asynccontextmanager
async def _client(args: argparse.Namespace) -> AsyncIterator["httpx.AsyncClient"]:
    """A client of --base-url, or of a server inside this process."""
    import httpx

    from pagoda.bench.sse import is_this_machine

    key = args.api_key or env.get("PAGODA_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=None)
    if args.base_url:
        url = args.base_url.rstrip("/").removesuffix("/v1")
        timeout = httpx.Timeout(None, connect=5.0)
        async with httpx.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=timeout,
            limits=limits,
            trust_env=not is_this_machine(url),
        ) as client:
            yield client
        return
    async with _own_app(args) as app:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            base_url="http://localhost", headers=headers, transport=transport, timeout=None
        ) as client:
            yield client


@asynccontextmanager
async def _own_app(args: argparse.Namespace) -> AsyncIterator[Any]:
    from pagoda.cli.talk.source_engine import open_served_model
    from pagoda.config.server import ServerConfig
    from pagoda.engine.served.fleet import Fleet
    from pagoda.server.app import create_app

    served = await open_served_model(engine_config(args))
    try:
        config = ServerConfig(disable_uvicorn_access_log=True)
        yield create_app(Fleet.of([served]), config)
    finally:
        await served.client.shutdown()
