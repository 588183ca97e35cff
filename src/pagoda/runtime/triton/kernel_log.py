"""What Triton compiles in this process, and what it finds compiled: said at start, with the why."""

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton import knobs

from pagoda.base.log import get_logger
from pagoda.base.units import format_seconds
from pagoda.runtime.triton.kernel_notes import KernelNotes, notes_of

logger = get_logger(__name__)

_KEY = "models"
_MOST_MODELS = 256


class KernelLog:
    """Counts from when it is made on."""

    def __init__(self) -> None:
        self._folder = _writable_folder()
        self._compiled = self._found = 0
        self._seconds = 0.0
        knobs.compilation.listener = self._count

    def expect(self, gpu: str, model: str) -> None:
        """Before first steps: say whether they will compile. `model` is all that its kernels
        depend on beside the GPU and the kernels themselves."""
        notes = notes_of(gpu)
        why = self._reason(notes, gpu, hashlib.sha256(model.encode()).hexdigest()[:16])
        if why:
            logger.info("Kernels are compiled in this start, which may take minutes: %s.", why)
        else:
            logger.info("Kernels are those that an earlier start left in %s.", self._folder)

    def report(self, doing: str) -> None:
        """Say what was compiled since the last report, if that is anything."""
        if self._compiled:
            logger.info(
                "%s compiled %d kernels in %s, which no start before this needed or %s has lost; "
                "later ones find them there.",
                doing, self._compiled, format_seconds(self._seconds), self._folder,
            )  # fmt: skip
        elif self._found:
            logger.debug("%s found all %d kernels compiled.", doing, self._found)
        self._compiled = self._found = 0
        self._seconds = 0.0

    def _reason(self, notes: KernelNotes, gpu: str, model: str) -> str:
        """Why kernels are not there; empty where they should be. Notes the model."""
        if knobs.compilation.always_compile:
            return "TRITON_ALWAYS_COMPILE is set"
        known = notes.read(_KEY)
        models = [one for one in known if isinstance(one, str)] if isinstance(known, list) else []
        if model in models:
            return ""
        notes.write(_KEY, [*models, model][-_MOST_MODELS:])
        if models:
            return "the model or its settings are new here"
        return f"Triton {triton.__version__} and these kernels are new on {gpu}"

    def _count(self, *, times: Any, cache_hit: bool, **rest: Any) -> None:
        """As triton.knobs.CompilationListener."""
        if cache_hit:
            self._found += 1
        else:
            self._compiled += 1
            self._seconds += times.total / 1e6


def _writable_folder() -> Path:
    """Where Triton keeps kernels; one for this process alone if its own cannot be written."""
    folder = Path(knobs.cache.dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        own = tempfile.mkdtemp(prefix="pagoda-triton-")
        logger.warning(
            "Each start compiles its kernels: %s cannot be written (%s). Name a folder that can "
            "in TRITON_CACHE_DIR.",
            folder, error.strerror,
        )  # fmt: skip
        knobs.cache.dir = own
        folder = Path(own)
    return folder
