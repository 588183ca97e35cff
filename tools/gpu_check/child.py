"""One phase, in the process that it has for itself: `python -m tools.gpu_check.child NAME ...`."""

import argparse
import importlib
import os
import sys
import traceback
from pathlib import Path

from tools.gpu_check.found import Clock, Found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("work")
    parser.add_argument("args", nargs="*")
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--until", type=float, required=True)
    parser.add_argument("--play", action="store_true")
    parser.add_argument("--fault")
    options = parser.parse_args()
    if options.play:
        # Read when a kernel is defined, so in front of every import of one.
        os.environ["TRITON_INTERPRET"] = "1"
    found = Found(options.file, options.fault)
    try:
        module = importlib.import_module(f"tools.gpu_check.work.{options.work}")
        module.run(found, Clock(options.until), options.play, *options.args)
    except ModuleNotFoundError as error:
        found.put("fault", f"{error}; carry the wheel that has it")
        return 1
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what was found
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        found.put("fault", f"{type(error).__name__}: {lines[0][:300]}")
        found.put("where", _places(error))
        return 1
    return 0


def _places(error: Exception) -> list[str]:
    """The last lines of its traceback that are Pagoda's own."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/pagoda/" in f.filename or "gpu_check" in f.filename]
    return [f"{Path(f.filename).name}:{f.lineno} {f.line}" for f in own[-4:]]


if __name__ == "__main__":
    sys.exit(main())
