"""Triton and CUDA are for those who have them: nothing asks for either before it is needed."""

import pkgutil
import subprocess
import sys

import pagoda


def test_imports_with_triton_and_cuda_blocked():
    names = [
        module.name
        for module in pkgutil.walk_packages(pagoda.__path__, "pagoda.")
        if ".triton." not in module.name  # those are imported where it is installed
    ]
    assert len(names) > 200
    program = (
        "import sys, importlib, torch\n"
        "def touched(*_):\n"
        "    raise AssertionError('CUDA is asked for')\n"
        "torch.cuda.is_available = torch.cuda.device_count = torch.cuda._lazy_init = touched\n"
        "sys.modules['triton'] = None\n"  # any import of it raises ImportError
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
