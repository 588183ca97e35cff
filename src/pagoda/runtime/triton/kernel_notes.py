"""What is known of Triton's kernels on one kind of GPU, kept from one start to the next."""

import json
import re
from pathlib import Path

import triton

from pagoda.base import env
from pagoda.base.log import get_logger
from pagoda.base.whole import write_whole
from pagoda.kernels.triton.products.forms import kernels_version

log = get_logger(__name__)


class KernelNotes:
    """A JSON object in a file. A folder that cannot be written costs what it would have said, and
    nothing else."""

    def __init__(self, path: Path):
        self.path = path

    def read(self, key: str) -> object:
        """None where there is nothing."""
        return self._read().get(key)

    def write(self, key: str, value: object) -> None:
        """Other keys stay as they are."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, json.dumps({**self._read(), key: value}))
        except OSError as error:
            log.info("What was learned of the kernels could not be kept: %s.", error)

    def _read(self) -> dict[str, object]:
        try:
            found = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def notes_of(gpu: str) -> KernelNotes:
    """Those of Triton's version and of these kernels; `gpu` is its name."""
    name = re.sub(r"[^\w.]+", "-", f"{gpu} triton {triton.__version__} {kernels_version()}")
    return KernelNotes(env.cache_dir() / "kernels" / f"{name}.json")
