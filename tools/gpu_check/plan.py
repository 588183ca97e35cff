"""What runs, in which order, and how long it may take."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
_KERNELS = TESTS / "kernels" / "triton"
TOTAL = 585.0
"""Seconds of all phases; the command that runs them has ten minutes."""
_SHARES, _PLAYED_SHARES = 6, 3
"""Processes that compare products and attention with their references."""
MODELS = {
    "Qwen3-VL-8B": 8,
    "gpt-oss-20b": 6,
    "Qwen3-VL-30B-A3B": 6,
    "Qwen3.6-27B-INT4": 8,
    "Gemma-4-26B-A4B-FP8": 6,
}
"""Models of `bench gpu`, each cut to so many layers."""
_LEFT_OUT = ("test_ahead_of_time.py", "test_triton_versions.py")
"""They compile for GPUs that are not there."""
_LONG = {"test_attention.py": 3, "test_experts.py": 3, "test_packed.py": 3, "test_routing.py": 3}
"""Processes of a file: its tests compile many forms."""
_FAMILIES = (
    "adapters", "bert", "deepseek", "eagle3", "encoder_gguf", "expert_adapters", "forward", "fp8",
    "gemma3", "gemma3n_vision", "gemma4", "gguf", "granite4", "internvl", "kv_scales", "lfm2",
    "llama4", "llama4_vision", "mistral3", "moe", "mtp", "nemotron_h", "phi4_multimodal",
    "qwen2_audio", "qwen2_video", "qwen2_vl", "qwen3_5", "qwen3_vl", "qwen_video", "transformers",
    "voxtral", "whisper",
)  # fmt: skip
"""Files of tests/models: tiny models beside transformers', on the device that is asked for."""
_PLAYED_FAMILIES = ("forward",)
_FAMILIES_SHARES = 8
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
    seconds: float = TOTAL
    """All its phases have so many; what they leave is the next stage's."""


def stages(play: bool, at_once: int) -> tuple[Stage, ...]:
    """All of a check; `at_once` processes compile and compare at once."""
    names = _PLAYED_TESTS if play else sorted(path.name for path in _KERNELS.glob("test_*.py"))
    tests = [phase for name in names if name not in _LEFT_OUT for phase in _tests(name)]
    shares = _PLAYED_SHARES if play else _SHARES
    parity = [
        Phase(f"parity {share + 1} of {shares}", "parity", 140, (str(share), str(shares)))
        for share in range(shares)
    ]
    engines = tuple(
        Phase(f"engine {name}", "engine", 60, (name, str(layers)), least=40)
        for name, layers in MODELS.items()
    )
    return (
        Stage((Phase("probe", "probe", 40),)),
        # The slow ones first: each comparison compiles what it compares.
        Stage((*parity, *tests), at_once, seconds=170),
        Stage((Phase("speed", "speed", 90, least=40),)),
        Stage(engines),
    )


def models_stages(play: bool, at_once: int) -> tuple[Stage, ...]:
    """The tests of models, on the GPU."""
    families = _PLAYED_FAMILIES if play else _FAMILIES
    paths = (f"models/test_{family}.py" for family in families)
    phases = _shared("tests of models", 1 if play else _FAMILIES_SHARES, *paths)
    return Stage((Phase("probe", "probe", 40),)), Stage(tuple(phases), at_once)


def _tests(name: str) -> list[Phase]:
    """Of a file of the kernels'."""
    path = (_KERNELS / name).relative_to(TESTS)
    return _shared(f"tests {name}", _LONG.get(name, 1), str(path))


def _shared(name: str, shares: int, *paths: str) -> list[Phase]:
    """A process for each share of the tests in some files."""
    return [
        Phase(
            name + (f" {share + 1} of {shares}" if shares > 1 else ""),
            "tests", 140, (str(share), str(shares), *paths),
        )
        for share in range(shares)
    ]  # fmt: skip
