"""`pagoda serve` with a configuration from a file: what `bench step-times` asks.

python -m pagoda.cli.benches.given_server FILE    # FILE: a pickled EngineConfig
"""

import pickle
import sys
from pathlib import Path

from pagoda.config.server import ServerConfig
from pagoda.server.launch import run_server


def main() -> int:
    config = pickle.loads(Path(sys.argv[1]).read_bytes())
    return run_server(config, ServerConfig(port=0))


if __name__ == "__main__":
    raise SystemExit(main())
