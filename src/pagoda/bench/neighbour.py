"""An engine that computes until it is ended, beside another that is timed.

python -m pagoda.bench.neighbour FILE    # FILE: a pickled EngineConfig
"""

import pickle
import sys
from pathlib import Path

from pagoda.bench.inprocess import BenchEngine

_PROMPT, _REPLY = 64, 32


def main() -> None:
    """Say "ready" once it computes."""
    engine = BenchEngine.start(pickle.loads(Path(sys.argv[1]).read_bytes()))
    engine.run([engine.random_prompt(_PROMPT)], [_REPLY])
    print("ready", flush=True)
    while True:
        engine.run([engine.random_prompt(_PROMPT)], [_REPLY])


if __name__ == "__main__":
    main()
