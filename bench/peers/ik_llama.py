"""ik_llama.cpp, built from a folder of its sources: no package has it."""

import os
import subprocess
from pathlib import Path

from bench.peers.environments import SetupError, run_logged
from bench.peers.paths import CACHE, WORKERS

_FOLDER = CACHE / "ik_llama"
_LOG = CACHE / "ik_llama.log"
# Its kernels of attention for KV types that are not measured would take an hour more.
_OPTIONS = (
    "CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "BUILD_SHARED_LIBS=ON", "LLAMA_CURL=OFF",
    "GGML_IQK_FA_ALL_QUANTS=OFF", "LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF",
    "LLAMA_BUILD_SERVER=OFF",
)  # fmt: skip


def ik_library(source: Path) -> Path:
    """The library that `workers/ik_llama_worker.py` loads; builds it first where it is not there,
    which takes half an hour on two cores. Raises SetupError."""
    if not (source / "include" / "llama.h").is_file():
        raise SetupError(f"--ik-source {source} holds no include/llama.h of ik_llama.cpp")
    build = _FOLDER / "build"
    options = [f"-D{option}" for option in _OPTIONS]
    jobs = str(len(os.sched_getaffinity(0)))
    run_logged(["cmake", "-S", str(source), "-B", str(build), *options], _LOG)
    run_logged(["cmake", "--build", str(build), "--target", "llama", "-j", jobs], _LOG)
    folders = [build / "src", build / "ggml" / "src"]
    library = _FOLDER / "libik.so"
    run_logged(
        [
            "c++", "-O2", "-shared", "-fPIC", "-o", str(library), str(WORKERS / "ik_llama.cpp"),
            f"-I{source / 'include'}", f"-I{source / 'ggml' / 'include'}",
            *(f"-L{folder}" for folder in folders), *(f"-Wl,-rpath,{folder}" for folder in folders),
            "-lllama", "-lggml",
        ],
        _LOG,
    )  # fmt: skip
    return library


def ik_version(source: Path) -> str:
    """Of a checkout its commit; of other sources no more than the name."""
    if not (source / ".git").exists():
        return "ik_llama.cpp"
    words = ["git", "-C", str(source), "rev-parse", "--short", "HEAD"]
    told = subprocess.run(words, capture_output=True, text=True)
    return f"ik_llama.cpp {told.stdout.strip()}".strip()
