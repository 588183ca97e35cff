"""llama.cpp's server as a contender: started by us, asked over HTTP, stopped in between."""

import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from pagoda.base.errors import PagodaError

_START_SECONDS = 120.0


class LlamaServer:
    """As a context manager it is ended, whatever happens. It computes only while it is asked."""

    def __init__(self, name: str, program: Path, model: Path, flags: list[str]):
        """Raises PagodaError when it does not start."""
        self.name = name
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = ["-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-np", "1", *flags]
        self._process = subprocess.Popen(
            [str(program), *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=None)
        try:
            self._wait_ready()
        except BaseException:
            self.close()
            raise
        self._process.send_signal(signal.SIGSTOP)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def speed(self, prompt: str, num_tokens: int, temperature: float) -> float:
        """Tokens per second behind the first, as it says itself."""
        self._process.send_signal(signal.SIGCONT)
        try:
            reply = self._http.post("/completion", json={
                "prompt": prompt, "n_predict": num_tokens, "temperature": temperature, "seed": 1,
                "ignore_eos": True, "cache_prompt": True, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
            })  # fmt: skip
            reply.raise_for_status()
            return float(reply.json()["timings"]["predicted_per_second"])
        except (httpx.HTTPError, KeyError, ValueError) as error:
            raise PagodaError(f"{self.name} failed: {error}") from error
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        self._http.close()
        self._process.kill()
        self._process.wait()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise PagodaError(
                    f"{self.name} ended with status {self._process.returncode}; start "
                    f"`{' '.join(map(str, self._process.args))}` to see why."  # type: ignore[arg-type]  # a list
                )
            try:
                if self._http.get("/health", timeout=2).status_code == httpx.codes.OK:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        raise PagodaError(f"{self.name} was not ready within {_START_SECONDS:.0f} s.")
