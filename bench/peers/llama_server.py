"""llama-server, built from the sources that llama-cpp-python ships."""

import os
import tarfile
from pathlib import Path

from bench.peers.environments import LLAMA, SetupError, run_logged
from bench.peers.paths import CACHE

_FOLDER = CACHE / "llama-server"
_LOG = CACHE / "llama-server.log"
_OPTIONS = (
    "CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "BUILD_SHARED_LIBS=OFF", "LLAMA_CURL=OFF",
    "LLAMA_OPENSSL=OFF", "LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF",
    "LLAMA_BUILD_UI=OFF", "LLAMA_USE_PREBUILT_UI=OFF",
)  # fmt: skip


def llama_server() -> Path:
    """The program; builds it on first use. Raises SetupError."""
    program = _FOLDER / "build" / "bin" / "llama-server"
    if not program.is_file():
        sources = llama_cpp_sources()
        options = [f"-D{option}" for option in _OPTIONS]
        build = str(_FOLDER / "build")
        run_logged(["cmake", "-S", str(sources), "-B", build, *options], _LOG)
        jobs = str(len(os.sched_getaffinity(0)))
        target = ["--target", "llama-server", "-j", jobs]
        run_logged(["cmake", "--build", build, *target], _LOG)
    return program


def llama_cpp_sources() -> Path:
    """llama.cpp inside the same source distribution that the wheel was built from."""
    if not list(_FOLDER.glob("llama_cpp_python-*/vendor/llama.cpp")):
        LLAMA.ready()
        LLAMA.pip(
            "download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", str(_FOLDER),
            LLAMA.packages[0],
        )  # fmt: skip
        for archive in _FOLDER.glob("llama_cpp_python-*.tar.gz"):
            with tarfile.open(archive) as tar:
                tar.extractall(_FOLDER, filter="data")
    found = list(_FOLDER.glob("llama_cpp_python-*/vendor/llama.cpp"))
    if not found:
        raise SetupError("the source distribution of llama-cpp-python holds no llama.cpp")
    return found[0]
