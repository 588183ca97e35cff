"""llama.cpp's own vocabularies, test vectors and chat templates, from its Python package."""

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from pagoda.base.env import cache_dir

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
INSIDE = "/vendor/llama.cpp/models/"


@pytest.fixture(scope="session")
def llama_models() -> Path:
    """The folder `models` of llama.cpp: ggml-vocab-*.gguf, .inp, .out, templates/*.jinja.

    Fetched once with pip (75 MB, not compiled) and kept in Pagoda's cache folder.
    """
    folder = cache_dir() / "tests" / f"{PACKAGE}-{VERSION}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            unpacked = _unpack(_download(Path(scratch)), Path(scratch) / "models")
            try:
                os.rename(unpacked, folder)
            except OSError:
                assert folder.is_dir()  # another run was faster
    return folder


def _download(scratch: Path) -> Path:
    options = ["--disable-pip-version-check", "--no-deps", "--no-binary", PACKAGE]
    command = ["download", "--quiet", *options, "--dest", str(scratch), f"{PACKAGE}=={VERSION}"]
    done = subprocess.run([sys.executable, "-m", "pip", *command], capture_output=True, text=True)
    assert done.returncode == 0, f"pip could not fetch {PACKAGE}: {done.stderr}"
    (archive,) = scratch.glob("*.tar.gz")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert digest == SHA256, f"{archive.name} is not the published file"
    return archive


def _unpack(archive: Path, target: Path) -> Path:
    with tarfile.open(archive) as tar:
        for member in tar:
            if INSIDE in member.name and member.isfile():
                member.name = member.name.split(INSIDE)[1]
                tar.extract(member, target, filter="data")
    return target
