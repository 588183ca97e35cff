"""What Triton needs beside itself to launch kernels: it compiles C for that, once or for each."""

import platform
import shlex
import shutil
import sysconfig
from pathlib import Path

import triton
from triton.runtime import driver

from pagoda.base import env
from pagoda.base.errors import MissingLibraryError
from pagoda.base.log import get_logger

logger = get_logger(__name__)


def check_launchers() -> None:
    """MissingLibraryError, with what to install, where no kernel can be launched."""
    missing = launcher_problem()
    if missing is None:
        return
    try:
        driver.active.get_current_target()
    except Exception as error:
        raise MissingLibraryError(missing) from error
    logger.warning("%s Only kernels that an earlier start left in Triton's cache work.", missing)


def launcher_problem() -> str | None:
    """What is missing for launching kernels that are not compiled yet, and how to install it; None
    where nothing is."""
    missing, packages = [], []
    chosen = env.get("CC")
    if not (shutil.which(chosen) if chosen else shutil.which("gcc") or shutil.which("clang")):
        missing.append(f"a C compiler (CC is {chosen!r})" if chosen else "a C compiler")
        packages.append("gcc")
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    header = Path(sysconfig.get_paths(scheme)["include"]) / "Python.h"
    if not header.exists():
        missing.append(f"Python's headers ({header})")
        version = ".".join(platform.python_version_tuple()[:2])
        packages.append(f"python{version}-dev")
    if not missing:
        return None
    return (
        f"Triton {triton.__version__} launches kernels on a GPU through code that it compiles, and "
        f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing. On Debian: "
        f"{shlex.join(['apt', 'install', *packages])}; or run with --device cpu."
    )
