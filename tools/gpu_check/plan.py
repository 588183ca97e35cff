"""What runs, in which order, and how long it may take."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests" / "kernels" / "triton"
TOTAL = 585.0
"""Seconds of all phases; the command that runs them has ten minutes."""
SHARES = 6
"""Processes that compare products and attention with their references."""
MODELS = {
    "Qwen3-VL-8B": 8,
    "gpt-oss-20b": 6,
    "Qwen3-VL-30B-A3B": 6,
    "Qwen3.6-27B-INT4": 8,
    "Gemma-4-26B-A4B-FP8": 6,
}
"""Of `bench gpu`, each cut to so many layers."""
_LEFT_OUT = ("test_ahead_of_time.py", "test_triton_versions.py")
"""They compile for GPUs that are not there."""
_PLAYED_TESTS = ("test_norm.py", "test_activation.py")


@dataclass(frozen=True)
class Phase:
    name: str
    work: str
    """A module of `tools.gpu_check.work`."""
    seconds: float
    """It is ended then, if time as a whole is not over before."""
    args: tuple[str, ...] = ()
    least: float = 20.0
    """With less time left it is not begun."""


class Stage(NamedTuple):
    """Phases that may run at once: none of them is timed against another."""

    phases: tuple[Phase, ...]
    at_once: int = 1


def stages(play: bool, at_once: int) -> tuple[Stage, ...]:
    """All of a check; `at_once` processes compile and compare at once."""
    names = _PLAYED_TESTS if play else sorted(path.name for path in TESTS.glob("test_*.py"))
    tests = [
        Phase(f"tests {name}", "tests", 150, (name,)) for name in names if name not in _LEFT_OUT
    ]
    parity = [
        Phase(f"parity {share + 1} of {SHARES}", "parity", 150, (str(share), str(SHARES)))
        for share in range(SHARES)
    ]
    engines = tuple(
        Phase(f"engine {name}", "engine", 100, (name, str(layers)), least=40)
        for name, layers in MODELS.items()
    )
    return (
        Stage((Phase("probe", "probe", 60),)),
        # The slow ones first: each comparison compiles what it compares.
        Stage((*parity, *tests), at_once),
        Stage((Phase("speed", "speed", 130, least=40),)),
        Stage(engines),
    )
