"""`pagoda launch` starts a server, which outlives it, and `pagoda stop` ends that."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.server.served import free_port

ASKS = """#!{python}
import json, os, urllib.request
body = {{"model": os.environ["COPILOT_MODEL"], "max_tokens": 4,
        "messages": [{{"role": "user", "content": "Hi"}}]}}
request = urllib.request.Request(
    os.environ["COPILOT_PROVIDER_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
    {{"Content-Type": "application/json", "Authorization": "Bearer sk-own"}},
)
print(json.load(urllib.request.urlopen(request))["usage"]["completion_tokens"], "tokens")
"""


@pytest.mark.timeout(180)
def test_a_server_for_a_client(smollm2_gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "copilot"
    program.write_text(ASKS.format(python=sys.executable))
    program.chmod(0o755)
    port = str(free_port())
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "PAGODA_CACHE": str(tmp_path / "cache"),
        "PAGODA_API_KEY": "sk-own",
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }

    def pagoda(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pagoda", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)

    launch = ["launch", "copilot", "--port", port, "--model", str(smollm2_gguf)]
    try:
        first = pagoda(*launch)
        assert (first.returncode, first.stdout) == (0, "4 tokens\n"), first.stderr
        assert f"serve-{port}.log" in first.stderr and f"`pagoda stop {port}`" in first.stderr
        second = pagoda(*launch)
        assert (second.returncode, second.stdout) == (0, "4 tokens\n"), second.stderr
        assert "Starting" not in second.stderr
        assert httpx.get(f"http://127.0.0.1:{port}/v1/models").status_code == 401
    finally:
        stopped = pagoda("stop", port)
    assert stopped.returncode == 0, stopped.stderr
