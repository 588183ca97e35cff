"""`python -m bench.install`: what a newcomer waits for, from a fresh clone to the first token.

Clones the commit at hand into a folder of its own, runs `make serve` there as the README says, and
prints when each step was over. The standard library alone, since nothing is installed yet.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PORT = 8917
# What `make serve` says once a step is over, and what it was.
_STEPS = (
    ("Installing Pagoda into", "clone and environment"),
    ("Installing Pagoda itself", "PyTorch"),
    ("Compiling kernels, 1 of", "packages and build tools"),
    ("Fetching packages", "kernels"),
    ("start-up took", "packages, the model, its start"),
    ("Ready: ", "server"),
)


def steps(lines: Iterable[str]) -> Iterable[tuple[str, float]]:
    """Each step with the time (perf_counter's) at which it was over."""
    wanted = iter(_STEPS)
    sign, name = next(wanted)
    for line in lines:
        if sign in line:
            yield name, time.perf_counter()
            sign, name = next(wanted, ("", ""))
            if not sign:
                return


def main() -> int:
    """Prints seconds from the start to the end of each step, the first token of a chat last."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "pagoda"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        environment = {**os.environ, "XDG_CACHE_HOME": str(Path(folder) / "cache")}
        server = subprocess.Popen(
            ["make", "serve", f"ARGS=--port {_PORT}"],
            cwd=clone, env=environment, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        assert server.stdout is not None
        try:
            said: list[str] = []
            done = 0
            for name, at in steps(_kept(server.stdout, said)):
                print(f"{at - begun:7.1f} s  {name}", flush=True)
                done += 1
            if done < len(_STEPS):
                print("".join(said[-40:]) + "The server did not start.")
                return 1
            threading.Thread(target=lambda: [None for _ in server.stdout], daemon=True).start()
            _first_token()
            print(f"{time.perf_counter() - begun:7.1f} s  the first token", flush=True)
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait()
    return 0


def _kept(lines: Iterable[str], said: list[str]) -> Iterable[str]:
    for line in lines:
        said.append(re.sub(r"^.*\r", "", line))
        yield line


def _first_token() -> None:
    body = {"messages": [{"role": "user", "content": "Hello!"}], "stream": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{_PORT}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        for line in reply:
            if b'"content"' in line:
                return


if __name__ == "__main__":
    sys.exit(main())
