"""A contender's worker process, as the driver sees it."""

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

from bench.peers import processes
from bench.peers.environments import SetupError
from bench.peers.paths import CACHE, ROOT, WORKERS

# vLLM compiles for minutes when it starts; no single measurement takes as long.
_PATIENCE = 900.0
# How libraries of the llama.cpp family begin to say why they end, behind a path.
_FAILED = "GGML_ASSERT("


class Worker:
    """Loads the model at once. Raises SetupError where the worker ends instead."""

    def __init__(self, python: Path, script: str, flags: list[str], variables: dict[str, str]):
        self._log = CACHE / f"{script}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(python), str(WORKERS / script), *flags], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
            )  # fmt: skip
        self.pid = self._process.pid
        try:
            self.about: dict[str, str] = self._answer()
        except SetupError:
            self.close()
            raise

    def ask(self, measure: str, **fields: Any) -> dict[str, Any]:
        """The worker's answer. Raises SetupError where it has none."""
        assert self._process.stdin is not None
        try:
            print(json.dumps({"measure": measure, **fields}), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise SetupError(self._last_words()) from None
        answer = self._answer()
        if "error" in answer:
            raise SetupError(answer["error"])
        return answer

    def close(self) -> None:
        processes.end(self._process)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        watch = threading.Timer(_PATIENCE, self._process.kill)
        watch.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            raise SetupError(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line]
        for line in lines:
            if _FAILED in line:  # a backtrace follows
                return line[line.index(_FAILED) :].strip()
        return lines[-1].strip() if lines else "it ended without a word"
