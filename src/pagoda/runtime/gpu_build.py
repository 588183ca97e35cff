"""Whether the torch that is installed was built for a GPU."""

import re
from collections.abc import Sequence

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)([af]?)")


def serves(architectures: Sequence[str], capability: int) -> bool:
    """Whether a build for these (as "sm_90", from `torch.cuda.get_arch_list`) has code that runs on
    a GPU of `capability` (as 90): machine code runs on later GPUs of the same generation, and
    "compute_90" is compiled by the driver for any later one."""
    for architecture in architectures:
        found = _ARCHITECTURE.fullmatch(architecture)
        if found is None:
            continue
        kind, number, only = found[1], int(found[2]), found[3]
        if only == "a":
            fits = number == capability
        elif kind == "compute" and not only:
            fits = number <= capability
        else:
            fits = number // 10 == capability // 10 and number <= capability
        if fits:
            return True
    return False


def problem(architectures: Sequence[str], capability: int, gpu: str, torch: str) -> str | None:
    """Why torch (its version) cannot compute on `gpu`, and what to install; None where it can, or
    where it does not say what it was built for."""
    if not architectures or serves(architectures, capability):
        return None
    known = [int(found[2]) for found in map(_ARCHITECTURE.match, architectures) if found]
    if known and capability < min(known):
        advice = (
            "an older one: builds for CUDA 12.6 (their versions end in +cu126) are the last that "
            "know sm_50 to sm_72"
        )
    else:
        advice = "a newer one, for a newer CUDA"
    return (
        f"PyTorch {torch} was not built for {gpu} (sm_{capability}), but for "
        f"{', '.join(architectures)}. Install {advice}; pytorch.org shows the command. Or run with "
        "--device cpu."
    )
