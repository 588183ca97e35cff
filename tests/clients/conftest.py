"""Frameworks of others, each in an environment of its own: their pins collide with ours."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import serve, start  # noqa: F401  # fixtures

CACHE = Path(__file__).parents[2] / ".cache" / "clients"


@pytest.fixture(scope="session")
def run_in() -> Callable[..., Any]:
    """Run a script of this folder in an environment with some requirements; what it prints as JSON.

    Environments are kept; without an index to install from, the test is skipped and says so.
    """

    def run(requirements: tuple[str, ...], script: str, *words: str) -> Any:
        python = _environment(requirements)
        done = subprocess.run(
            [python, Path(__file__).with_name(script), *words],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


def _environment(requirements: tuple[str, ...]) -> Path:
    name = hashlib.sha256(" ".join((sys.version, *requirements)).encode()).hexdigest()[:12]
    folder = CACHE / name
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return python
    # Most of what a framework brings is never imported: compiling all of it takes half a minute.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    install = [*pip, "install", "-q", "--no-compile", *requirements]
    done = subprocess.run(install, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"{', '.join(requirements)} cannot be installed here: {done.stderr[-300:]}")
    (folder / "ready").touch()
    return python
