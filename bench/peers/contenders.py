"""Who takes part, and with which files."""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.peers import environments
from bench.peers.environments import Environment
from bench.peers.ik_llama import ik_library, ik_version
from bench.peers.models import (
    BIG_FILES,
    GGUF_FILES,
    TOWER_FILES,
    TOWERS_MODEL,
    VECTOR_FILES,
    model_path,
)
from bench.peers.worker import Worker

PAGODA = "Pagoda"


@dataclass(frozen=True)
class Contender:
    name: str
    script: str
    environment: Environment | None
    """None: the driver's own."""
    files: tuple[str, ...]
    """In whose rows it stands."""
    own_file: str | None = None
    """What it loads instead of the row's file."""
    flags: Callable[[], tuple[str, ...]] = tuple
    """Asked for when it starts: what they name may have to be built."""
    variables: Callable[[int], dict[str, str]] = lambda threads: {}
    """Of its environment, for a number of threads."""

    def start(self, file: str, threads: int) -> Worker:
        """Raises SetupError where its environment or file cannot be had, or it does not start."""
        python = Path(sys.executable) if self.environment is None else self.environment.ready()
        path = model_path(self.own_file or file)
        flags = ["--model", str(path), "--threads", str(threads), *self.flags()]
        return Worker(python, self.script, flags, self.variables(threads))


CONTENDERS = (
    Contender(PAGODA, "pagoda_worker.py", None, (*GGUF_FILES, *BIG_FILES)),
    Contender(
        "llama.cpp", "llama_cpp_worker.py", environments.LLAMA, (*GGUF_FILES, *BIG_FILES)
    ),
    Contender(
        "transformers", "transformers_worker.py", environments.TRANSFORMERS, ("bf16",),
        flags=lambda: ("--dtype", "bfloat16"),
    ),
    Contender(
        "vllm", "vllm_worker.py", environments.VLLM, ("bf16",), own_file="hf",
        variables=environments.vllm_variables,
    ),
    Contender(
        "onnxruntime-genai", "onnxruntime_worker.py", environments.ORT, ("q4_1",), own_file="onnx"
    ),
)  # fmt: skip

VECTOR_CONTENDERS = (
    Contender(PAGODA, "pagoda_vectors_worker.py", None, VECTOR_FILES),
    Contender(
        "sentence-transformers", "vectors_worker.py", environments.VECTORS, VECTOR_FILES,
        flags=lambda: ("--backend", "torch"),
    ),
    Contender(
        "onnxruntime", "vectors_worker.py", environments.VECTORS, VECTOR_FILES,
        flags=lambda: ("--backend", "onnx"),
    ),
)  # fmt: skip


def _text_model() -> tuple[str, ...]:
    return ("--text-model", str(model_path(TOWERS_MODEL)))


PICTURE_CONTENDERS = (
    Contender(PAGODA, "pagoda_pictures_worker.py", None, TOWER_FILES, flags=_text_model),
    Contender("mtmd", "mtmd_worker.py", environments.LLAMA, TOWER_FILES, flags=_text_model),
)

REFERENCE = Contender(
    "reference", "transformers_worker.py", environments.TRANSFORMERS, GGUF_FILES,
    flags=lambda: ("--dtype", "float32"),
    # Nobody times it, and its threads must not spin beside those that are.
    variables=lambda threads: {"OMP_WAIT_POLICY": "PASSIVE"},
)  # fmt: skip
"""fp32 arithmetic on the file's own weights: what accuracy is measured against."""


def ik_contenders(source: Path) -> tuple[Contender, ...]:
    """ik_llama.cpp as it loads a file, and with rows that it repacks; built of `source`."""
    library = functools.cache(lambda: ik_library(source))

    def flags(*more: str) -> Callable[[], tuple[str, ...]]:
        return lambda: (
            "--library", str(library()), "--library-version", ik_version(source), *more
        )  # fmt: skip

    files = (*GGUF_FILES, *BIG_FILES)
    return (
        Contender("ik_llama.cpp", "ik_llama_worker.py", None, files, flags=flags()),
        Contender("ik_llama.cpp -rtr", "ik_llama_worker.py", None, files, flags=flags("--repack")),
    )
