"""`python tools/try_wheel.py dist`: installs this Python's wheel where no compiler is on PATH,
serves the default model with it, and asks it something."""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PORT = 8919
_SECONDS = 300


def main() -> int:
    """0 once the wheel's server has answered with the kernels compiled for this CPU."""
    dist = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        programs = Path(folder) / "bin"
        environment = {
            "PATH": str(programs),
            "HOME": folder,
            **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
        }
        pip = [programs / "python", "-m", "pip", "install", "--quiet"]
        constraints = ["-c", str(ROOT / "constraints.txt")]
        options = ["--find-links", str(dist), "--only-binary", "pagoda-llm"]
        command = [*pip, *constraints, *options, "pagoda-llm"]
        subprocess.run(command, check=True, env=environment, cwd=folder)
        words = ["serve", "smollm2", "--port", str(_PORT), "--max-model-len", "1024"]
        log = Path(folder) / "log"
        with log.open("w") as out:
            server = subprocess.Popen(
                [programs / "pagoda", *words], env=environment, cwd=folder, stdout=out, stderr=out
            )
            try:
                text = _answer(server)
            finally:
                server.terminate()
                server.wait()
        said = log.read_text()
    print(said)
    if text is None or "without its native kernels" in said:
        return 1
    print(f"It answered: {text!r}")
    return 0


def _answer(server: "subprocess.Popen[bytes]") -> str | None:
    """The text of a completion, once the server is ready; None if it never is."""
    body = json.dumps({"prompt": "One, two, three,", "max_tokens": 4, "temperature": 0}).encode()
    address = f"http://127.0.0.1:{_PORT}/v1/completions"
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    deadline = time.monotonic() + _SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as reply:
                choices = json.load(reply)["choices"]
                return str(choices[0]["text"])
        except urllib.error.URLError:
            time.sleep(0.5)
    return None


if __name__ == "__main__":
    sys.exit(main())
