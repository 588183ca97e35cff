"""`pagoda serve`: a model behind an OpenAI-compatible API."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from pagoda.base.errors import ConfigError, PagodaError
from pagoda.base.log import get_logger, setup_logging
from pagoda.config.compat import add_compat_flags, answers
from pagoda.config.flags import (
    add_engine_flags,
    add_flags,
    engine_config,
    from_namespace,
    with_config_file,
)
from pagoda.config.server import ServerConfig
from pagoda.doctor.command import serve_command, serving_words
from pagoda.engine.processes.spawn import spawned_early
from pagoda.planner.planned import Advice, PlannedModel, PlanQuestion
from pagoda.version import __version__

USAGE = "[MODEL ...] [flags]"
USUAL = (
    "--host",
    "--port",
    "--api-key",
    "--served-model-name",
    "--max-model-len",
    "--max-num-seqs",
    "--gpu-memory-utilization",
    "--kv-cache-dtype",
    "--tensor-parallel-size",
    "--threads",
)
EPILOG = (
    "--config FILE reads flags from YAML. Other flags of vLLM and llama-server are accepted: what "
    "says the same as one of these does the same, any other is answered with one line."
)

prepare = with_config_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_flags(parser)
    parser.add_argument(
        "more_models", nargs="*", metavar="MODEL",
        help="further models, as MODEL or NAME=MODEL; each is loaded when it is asked for",
    )  # fmt: skip
    add_flags(parser, ServerConfig)
    add_compat_flags(parser)


def run(args: argparse.Namespace) -> int:
    lines = answers(args)
    engine, server = engine_config(args), from_namespace(ServerConfig, args)
    setup_logging(server.log_level, server.log_format)
    if server.path is not None and not Path(server.path).is_dir():
        raise ConfigError(f"--path {server.path} is no folder; name one that holds the files.")
    log = get_logger("cli.serve")
    serving = serving_words(server, args.more_models)
    # Before the imports below: they take a second, on a cold disk several.
    log.info(
        "Pagoda %s, non-default args: %s",
        __version__, serve_command(engine.model.model, engine, serving),
    )  # fmt: skip
    for line in lines:
        log.warning("%s", line)

    if engine.nodes.nnodes > 1 and args.more_models:
        raise ConfigError("--nnodes serves one model; leave the others out.")
    if engine.nodes.headless:
        from pagoda.engine.ranks.agent import run_node

        return run_node(engine)

    def advise(error: PagodaError) -> list[str]:
        from pagoda.doctor.after import after_failure

        return after_failure(engine, error, serving)

    with spawned_early() as spawner:
        from pagoda.server.launch import run_server

        return run_server(
            engine,
            server,
            spawner=spawner,
            more_models=args.more_models,
            wrap=partial(with_page, server),
            advise=advise,
            advice=Advice(_plan, _known),
        )


def with_page(server: ServerConfig, app: Any) -> Any:
    """The ASGI application with what `server` wants in front of the API. Called when the engine has
    its process: this imports starlette."""
    if server.path is not None:
        from pagoda.web.files import Files

        return Files(app, server.path, server.root_path)
    if not server.webui:
        return app
    from pagoda.web.site import Site

    return Site(app, server.root_path)


async def _plan(question: PlanQuestion) -> PlannedModel:
    from pagoda.doctor.beside import plan_beside

    return await plan_beside(question)


def _known() -> list[str]:
    from pagoda.doctor.subject import names

    return names()
