"""`python -m bench.llama_tests`: llama.cpp's own tests of its server, against Pagoda.

The tests come with llama-cpp-python's sources and are fetched on first use. Their models are in the
network, so others stand in: the default model for their story teller, MiniLM for their encoder.
What of that is left to test is found out, not guessed: llama-server itself is run with the same
stand-ins, and a test that it fails needs a model that is not here.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from bench.llama_tests.report import DOCUMENT, Outcome, tables
from bench.peers.environments import Environment, run_logged
from bench.peers.llama_server import llama_cpp_sources, llama_server
from bench.peers.models import model_path
from bench.peers.paths import CACHE
from pagoda.weights.hub.models import pull

_FOLDER = CACHE / "llama-tests"
_STORIES = "ggml-org/test-model-stories260K"
_ENCODER = "ggml-org/models/bert-bge-small/ggml-model-f16.gguf"
_TESTS = Environment(
    "llama-tests-venv",
    (
        "pytest>=8.3,<9", "pytest-timeout>=2.4,<3", "aiohttp>=3.9", "filelock>=3.16", "numpy>=2.2",
        "openai>=2.14,<3", "prometheus-client>=0.20", "requests>=2.32", "wget>=3.2",
    ),
)  # fmt: skip
_SECONDS_PER_TEST = 180


def main() -> int:
    args = _arguments()
    _FOLDER.mkdir(parents=True, exist_ok=True)
    which = ["llama-server", "Pagoda"] if args.only is None else [args.only]
    for name in which:
        _run(name, args.k)
    if args.only is not None:
        return 0
    outcomes = {name: _read(name) for name in ("llama-server", "Pagoda")}
    text = tables(outcomes["llama-server"], outcomes["Pagoda"])
    print(text)
    if args.k is None:
        DOCUMENT.write_text(text)
    return 0


def _run(name: str, expression: str | None) -> None:
    """Run all tests against `name`; the outcomes go to its file."""
    tests = llama_cpp_sources() / "tools" / "server" / "tests"
    chosen = ["-k", expression] if expression else []
    command = [
        str(_TESTS.ready()), "-m", "pytest", "unit", "-p", "stand_ins", "-v", "--timeout",
        str(_SECONDS_PER_TEST), f"--junitxml={_results(name)}", "-p", "no:cacheprovider", *chosen,
    ]  # fmt: skip
    with (_FOLDER / f"{name}.log").open("w") as log:
        subprocess.run(
            command, cwd=tests, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            env=_variables(name, tests),
        )  # fmt: skip


def _variables(name: str, tests: Path) -> dict[str, str]:
    pagoda = name == "Pagoda"
    models = {
        _STORIES: str(model_path("q4_1")),
        _ENCODER: str(pull("minilm")) if pagoda else str(_encoder_gguf()),
    }
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # llama.cpp's kernels for AMX fault with the width of the story teller's stand-in.
    own = {} if pagoda else {"LLAMA_ARG_REPACK": "0"}
    return (
        os.environ
        | own
        | {
            "PORT": str(port),
            "PYTHONPATH": f"{tests}:{Path(__file__).parent}",
            "LLAMA_TESTS_MODELS": json.dumps(models),
            "LLAMA_SERVER_BIN_PATH": str(_pagoda_program() if pagoda else llama_server()),
        }
    )


def _pagoda_program() -> Path:
    """`llama-server`'s arguments go to `pagoda serve` as they are. Like it, it serves any name."""
    program = _FOLDER / "pagoda-serve"
    serve = f'{sys.executable} -m pagoda serve --any-model-name "$@"'
    program.write_text(f"#!/bin/sh\nPYTHONPATH= exec {serve}\n")
    program.chmod(0o755)
    return program


def _encoder_gguf() -> Path:
    """MiniLM by llama.cpp's own converter."""
    path = _FOLDER / "minilm.gguf"
    if not path.exists():
        converter = llama_cpp_sources() / "convert_hf_to_gguf.py"
        run_logged(
            [sys.executable, str(converter), str(pull("minilm")), "--outfile", str(path)],
            CACHE / "models.log",
        )
    return path


def _results(name: str) -> Path:
    return _FOLDER / f"{name}.xml"


def _read(name: str) -> dict[str, Outcome]:
    """Each test's outcome, by its name."""
    found = {}
    for case in ElementTree.parse(_results(name)).getroot().iter("testcase"):
        test = f"{case.get('classname', '').removeprefix('unit.')}::{case.get('name')}"
        state, why = "passed", ""
        for child in case:
            if child.tag in ("skipped", "failure", "error"):
                state = "skipped" if child.tag == "skipped" else "failed"
                why = child.get("message") or ""
        found[test] = Outcome(state, why)
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.llama_tests", description=__doc__)
    parser.add_argument("--only", choices=("llama-server", "Pagoda"), help="run against this alone")
    parser.add_argument("-k", metavar="EXPRESSION", help="of pytest: tests whose names match")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
