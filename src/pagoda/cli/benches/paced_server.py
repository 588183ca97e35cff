"""`pagoda serve` before an engine that computes nothing: what `bench serving-cost` measures."""

import sys

from pagoda.cli import serve
from pagoda.config.engine import EngineConfig
from pagoda.config.flags import engine_config, from_namespace
from pagoda.config.parser import FlagParser
from pagoda.config.server import ServerConfig
from pagoda.engine.processes.child import LaunchOptions
from pagoda.engine.processes.client import EngineClient
from pagoda.engine.processes.transport import MemoryRoom
from pagoda.server.launch import run_server


def launch(engine: EngineConfig, server: ServerConfig, room: MemoryRoom | None) -> EngineClient:
    module = "pagoda.bench.paced_engine"
    return EngineClient(engine, LaunchOptions(server.log_level, server.log_format, module=module))


def main() -> int:
    parser = FlagParser(prog="paced_server", usage=serve.USAGE)
    serve.add_arguments(parser)
    args = parser.parse_args(sys.argv[1:])
    return run_server(engine_config(args), from_namespace(ServerConfig, args), launch)


if __name__ == "__main__":
    raise SystemExit(main())
