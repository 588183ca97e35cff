"""`pagoda serve` with a configuration from a file: what `bench step-times` asks.

python -m pagoda.cli.benches.given_server FILE    # FILE: an EngineConfig as JSON
"""

import sys
from pathlib import Path

import msgspec

from pagoda.config.engine import EngineConfig
from pagoda.config.server import ServerConfig
from pagoda.server.launch import run_server


def main() -> int:
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=EngineConfig)
    return run_server(config, ServerConfig(port=0))


if __name__ == "__main__":
    raise SystemExit(main())
