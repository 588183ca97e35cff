"""An engine that computes until it is ended, beside another that is timed.

python -m pagoda.bench.neighbour FILE    # FILE: an EngineConfig as JSON
"""

import sys
from pathlib import Path

import msgspec

from pagoda.bench.inprocess import BenchEngine
from pagoda.config.engine import EngineConfig

_PROMPT, _REPLY = 64, 32


def main() -> None:
    """Say "ready" once it computes."""
    engine = BenchEngine.start(
        msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=EngineConfig)
    )
    engine.run([engine.random_prompt(_PROMPT)], [_REPLY])
    print("ready", flush=True)
    while True:
        engine.run([engine.random_prompt(_PROMPT)], [_REPLY])


if __name__ == "__main__":
    main()
