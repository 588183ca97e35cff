"""Floors 0 to 4 and everything the server process imports must work without torch."""

import pkgutil
import subprocess
import sys

import pagoda

TORCH_FREE = (
    "base", "config", "weights", "arch", "core", "text", "planner", "server", "doctor", "simulate",
    "cli",
)  # fmt: skip
TORCH_FREE_MODULES = (
    "pagoda.engine.processes.client",
    "pagoda.engine.served.model",
    "pagoda.engine.outputs",
    "pagoda.web.site",
)


def torch_free_modules() -> list[str]:
    names = list(TORCH_FREE_MODULES)
    for module in pkgutil.walk_packages(pagoda.__path__, "pagoda."):
        if module.name.split(".")[1] in TORCH_FREE:
            names.append(module.name)
    return names


def test_torch_free_floors_import_with_torch_blocked():
    names = torch_free_modules()
    assert len(names) > 40
    program = (
        "import sys, importlib\n"
        "sys.modules['torch'] = None\n"  # any import of it raises ImportError
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
