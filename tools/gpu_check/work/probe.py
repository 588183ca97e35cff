"""What this machine has, and whether what Pagoda builds on works here at all."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from tools.gpu_check.found import Clock, Found

WHEELS = {
    "numpy": "numpy", "msgspec": "msgspec", "zmq": "pyzmq", "llguidance": "llguidance",
    "tokenizers": "tokenizers", "jinja2": "jinja2", "pynvml": "nvidia-ml-py",
    "pytest": "pytest", "hypothesis": "hypothesis",
}  # fmt: skip
"""Modules that the other phases import, and the wheel that each comes in."""


def run(found: Found, clock: Clock, play: bool) -> None:
    found.put("python", sys.version.split()[0])
    missing = sorted(wheel for module, wheel in WHEELS.items() if find_spec(module) is None)
    found.put("missing wheels", missing)
    import torch

    found.put("torch", torch.__version__)
    found.put("CUDA", torch.version.cuda)
    import triton

    found.put("triton", triton.__version__)
    if not play:
        found.put("gpu", torch.cuda.get_device_name())
        found.put("capability", "sm_{}{}".format(*torch.cuda.get_device_capability()))
        found.put("free and whole memory", torch.cuda.mem_get_info())
        found.put("NCCL", _tried(torch.cuda.nccl.version))
    from pagoda.runtime.device import torch_problem
    from pagoda.runtime.triton.launchers import launcher_problem

    found.put("torch's architectures", torch.cuda.get_arch_list())
    found.put("torch for this GPU", _tried(lambda: torch_problem(0) or "fits"))
    found.put("what launches need", _tried(lambda: launcher_problem() or "is there"))
    for name, work in _abilities("cpu" if play else "cuda").items():
        found.put(name, _tried(work))


def _abilities(device: str) -> dict[str, Callable[[], Any]]:
    """Each with small tensors."""
    import torch

    def wide_product() -> str:
        x = torch.ones(64, 64, device=device, dtype=torch.bfloat16)
        return str(torch.mm(x, x, out_dtype=torch.float32).dtype)

    def fp8() -> str:
        x = torch.arange(8.0, device=device).to(torch.float8_e4m3fn)
        return str(x.float().sum().item())

    def scaled_product(in_groups: bool) -> bool:
        from pagoda.kernels.triton.products import scaled

        return scaled._works(torch.device(device), in_groups)

    def kernel() -> str:
        from pagoda.kernels.triton import norm

        x = torch.randn(4, 256, device=device)
        got = norm.rms_norm(x, torch.ones(256, device=device), 1e-6)
        want = torch.nn.functional.rms_norm(x, (256,), eps=1e-6)
        return f"differs by {(got - want).abs().max().item():.1e}"

    def graph() -> str:
        if device == "cpu":
            return "played"
        from pagoda.runtime.steps.graphs import CudaGraphs

        x = torch.ones(64, device=device)
        CudaGraphs(torch.device(device, 0))(lambda: x.add_(1)).replay()
        return f"{x[0].item():.0f}, expected 2"

    return {
        "first kernel": kernel, "graph": graph, "fp8": fp8,
        "mm with out_dtype": wide_product,
        "fp8 product, a scale per row": lambda: scaled_product(False),
        "fp8 product, scales of 128 columns": lambda: scaled_product(True),
    }  # fmt: skip


def _tried(work: Callable[[], Any]) -> object:
    """What it gives, or why it gives nothing."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what was found
        return f"FAILED: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
