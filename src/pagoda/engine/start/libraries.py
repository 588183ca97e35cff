"""What the engine needs torch for, and torch itself: whether it can be loaded, and else how it
could."""

import re
import shlex
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from pagoda.base import env
from pagoda.base.errors import CapacityError, MissingLibraryError
from pagoda.base.facts import DeviceName
from pagoda.base.machine import address_limit
from pagoda.base.units import format_bytes
from pagoda.engine.core import describe

if TYPE_CHECKING:  # torch comes in on a thread, while the headers are read
    from pagoda.models.base import Model
    from pagoda.runtime.adapters import ResidentAdapters
    from pagoda.runtime.device import Device
    from pagoda.runtime.runner import ModelRunner
    from pagoda.runtime.steps.program import StepLimits
    from pagoda.weights.checkpoint import Checkpoint

_PACKAGE = "pagoda-llm"
# As the loader and the system say it.
_NO_ADDRESSES = re.compile("map segment|allocate memory")
_NOTHING = nullcontext()


class Libraries(NamedTuple):
    """What needs torch: 1 s of imports on a warm disk, begun before it is known what for."""

    has_gpu: Callable[[], bool]
    make_device: "Callable[[DeviceName, int], Device]"
    build_model: "Callable[..., Model]"
    runner: "type[ModelRunner]"
    step_limits: "type[StepLimits]"
    largest_step: Callable[..., None]
    load_kv_scales: "Callable[[Model, Checkpoint], str]"
    kv_scales_digest: Callable[..., str]
    make_adapters: "Callable[..., ResidentAdapters | None]"


def import_beside(within: AbstractContextManager[None] = _NOTHING) -> Future[Libraries]:
    """`import_libraries` on a thread of its own, `within` a context."""
    # OpenMP's threads spin for milliseconds behind each operation unless told otherwise before
    # torch loads. Where others use the cores too, that made start-up and decoding of the
    # default model 5 to 20 times slower (2 threads, 2 cores, 2 busy neighbours).
    env.set_default("OMP_WAIT_POLICY", "PASSIVE")
    # Read when torch first asks a GPU for memory. Steps of ever other sizes leave holes in segments
    # that cannot grow, and memory is short where enough is free.
    if not env.get("PYTORCH_CUDA_ALLOC_CONF"):
        env.set_default("PYTORCH_ALLOC_CONF", "expandable_segments:True")

    def load() -> Libraries:
        with within:
            return import_libraries()

    pool = ThreadPoolExecutor(1, "import-torch")
    libraries = pool.submit(load)
    pool.shutdown(wait=False)
    return libraries


def import_libraries() -> Libraries:
    """Raises as `import_torch`."""
    import_torch()
    from pagoda.models import kv_scales
    from pagoda.models.loader import build_model
    from pagoda.runtime.adapters import make_adapters
    from pagoda.runtime.device import has_gpu, make_device
    from pagoda.runtime.profile import largest_step
    from pagoda.runtime.runner import ModelRunner
    from pagoda.runtime.steps.program import StepLimits

    return Libraries(
        has_gpu,
        make_device,
        build_model,
        ModelRunner,
        StepLimits,
        largest_step,
        kv_scales.load_kv_scales,
        kv_scales.digest,
        make_adapters,
    )


def import_torch() -> None:
    """Load torch. Raises MissingLibraryError, with the command that mends it, where it is not
    installed or broken, and CapacityError where addresses are too few for it."""
    found = find_spec("torch")
    if found is None:
        raise MissingLibraryError(
            "PyTorch is not installed, and the engine needs it. Install it with "
            f"`{_install_torch()}`."
        )
    try:
        import torch
    # A library that is not there is an OSError, of CUDA's own packages a ValueError.
    except (ImportError, OSError, ValueError) as error:
        limit = address_limit()
        if limit is not None and _NO_ADDRESSES.search(str(error)):
            raise CapacityError(
                f"A process may have {format_bytes(limit)} of addresses here, too few for PyTorch "
                f"({describe(error)}). Lift the limit: ulimit -v unlimited."
            ) from error
        raise MissingLibraryError(_broken(found.origin, describe(error))) from error
    if not hasattr(torch, "__version__"):
        # What an uninstallation left behind is a package without code.
        raise MissingLibraryError(_broken(None, "it has no code"))


def _broken(origin: str | None, why: str) -> str:
    where = f" of {origin}" if origin else ""
    return (
        f"PyTorch{where} cannot be loaded ({why}). Install it anew with "
        f"`{_install_torch('--force-reinstall')}`."
    )


def _install_torch(*flags: str) -> str:
    try:
        wanted = [line for line in requires(_PACKAGE) or () if re.match(r"torch(?![\w-])", line)]
    except PackageNotFoundError:
        wanted = []
    return shlex.join([sys.executable, "-m", "pip", "install", *flags, *(wanted or ["torch"])])
