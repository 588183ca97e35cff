"""GPUs by the names that people type: what a plan for hardware that is not here needs to know.

Rates are those of NVIDIA's data sheets and architecture papers: dense (without sparsity), fp16 and
bf16 with sums in fp32, which is what matrix libraries ask for and GeForce cards do at half rate.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pagoda.base.errors import ConfigError
from pagoda.base.facts import DeviceFacts
from pagoda.base.near import edit_distance
from pagoda.base.words import say, with_or

_GIB = 1 << 30
# What torch sees is less than what nvidia-smi says, by 0.32 to 0.46 GiB on the measured cards of
# up to 40 GB (3090, 4090, 5090, L4) and by 0.50 to 0.75 on larger ones (A100, H100, B200).
_HIDDEN = 0.45
_HIDDEN_OF_LARGE = 0.6
_LARGE_MIB = 40 << 10
_MAX_COUNT = 1024
_LANES = 16
_PCIE = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9}
"""Bytes a second of one lane, by generation (PCI Express base specification)."""
_LONGEST_NAME = 200
# A name that has less in common with a known one suggests nothing.
_LEAST_LIKENESS, _MOST_NEAR = 0.25, 3


@dataclass(frozen=True)
class Gpu:
    """One model of GPU."""

    name: str
    memory: int
    """Bytes that torch sees, `torch.cuda.mem_get_info()[1]`."""
    memory_source: str
    """`measured`, or how the number was assumed."""
    capability: tuple[int, int]
    bandwidth: float
    """Bytes a second, nominal."""
    matmul: Mapping[str, float]
    """FLOP/s (or integer operations) by type, of `fp16`, `bf16`, `fp8`, `int8`: those that its
    tensor cores have."""
    nvlink: bool = False
    """Cards of this form are wired to each other; bridges that one may buy do not count."""
    aliases: tuple[str, ...] = field(default=(), repr=False)

    @property
    def bus(self) -> float:
        """Bytes a second from the host, nominal: 16 lanes of PCIe 3, 4 or 5, by the generation of
        the GPU. Some cards have 8 lanes, and some machines have older slots."""
        generation = 3 if self.capability < (8, 0) else 4 if self.capability < (9, 0) else 5
        return _LANES * _PCIE[generation]


def find_gpus(text: str) -> tuple[Gpu, int]:
    """`A100-80G`, `3090x4`, `4xH100`: the GPU and how many of it.

    Case, spaces, dashes and the maker's words (NVIDIA, GeForce, RTX, Tesla) do not count.
    ConfigError for a name that is unknown or means several GPUs; it says which were near.
    """
    if len(text) > _LONGEST_NAME:
        raise ConfigError(f"--gpu takes a name such as A100-80G, not {len(text):,} characters.")
    name, count = _split_count(_squeezed(text))
    if not 1 <= count <= _MAX_COUNT:
        raise ConfigError(
            say(
                "{text!r} asks for {count} GPUs; give between 1 and {most}.",
                text=text,
                count=count,
                most=_MAX_COUNT,
            )
        )
    if name in _BY_NAME:
        return _BY_NAME[name], count
    begun = _begun_by(name)
    if len(begun) == 1:
        return begun[0], count
    if begun:
        names = with_or([gpu.name for gpu in begun])
        raise ConfigError(
            say("{text!r} may be several GPUs; write {names}.", text=text, names=names)
        )
    raise ConfigError(
        say(
            "The GPU {text!r} is not known; {near}. All are NVIDIA's. Count with 4xNAME or NAMEx4.",
            text=text,
            near=_near(name),
        )
    )


def likest_gpu(facts: DeviceFacts) -> Gpu:
    """The GPU that torch calls so; of those that may be meant, or of all where none is known by
    that name, the one whose capability, and then memory, is nearest."""
    name = _squeezed(facts.name)
    if name in _BY_NAME:
        return _BY_NAME[name]

    def distance(gpu: Gpu) -> tuple[int, int]:
        major, minor = gpu.capability
        return abs(10 * major + minor - facts.capability), abs(gpu.memory - facts.total_memory)

    return min(_begun_by(name) or GPUS, key=distance)


def _near(name: str) -> str:
    """Names like one that nobody knows, the likest first; all names where none is."""
    likeness = {
        gpu.name: max(_likeness(name, _squeezed(known)) for known in (gpu.name, *gpu.aliases))
        for gpu in GPUS
    }
    near = [gpu for gpu, share in likeness.items() if share >= _LEAST_LIKENESS]
    if not near:
        return say("known are {names}", names=", ".join(likeness))
    nearest = sorted(near, key=lambda gpu: likeness[gpu], reverse=True)
    return say("the nearest known are {names}", names=", ".join(nearest[:_MOST_NEAR]))


def _likeness(one: str, other: str) -> float:
    """The share of letters that are the same."""
    return 1 - edit_distance(one, other) / max(len(one), len(other))


def _squeezed(text: str) -> str:
    words = re.sub(r"[\s_\-/()]+", " ", text.lower())
    words = re.sub(r"nvidia|geforce|rtx|gtx|tesla|quadro|generation|edition", "", words)
    words = re.sub(r"(\d)\s*gi?b\b", r"\1g", words)
    return words.replace(" ", "")


def _split_count(name: str) -> tuple[str, int]:
    # No GPU's name has three digits or fewer in front of an x.
    if match := re.fullmatch(r"(\d{1,3})[x*](.+)", name):
        return match[2], int(match[1])
    # And each has two letters or more: `RX 7900` counts nothing.
    if match := re.fullmatch(r"(..+)[x*](\d{1,4})", name):
        return match[1], int(match[2])
    return name, 1


def _begun_by(name: str) -> list[Gpu]:
    """Those that `3080` or `A100` may mean."""
    return [gpu for gpu in GPUS if name and name in _beginnings(gpu.name)]


def _beginnings(name: str) -> set[str]:
    """`A100` and `A100-SXM` of `A100-SXM-80G`."""
    parts = name.split("-")
    return {_squeezed("-".join(parts[:count])) for count in range(1, len(parts))}


def _gpu(
    name: str,
    memory: float | int,
    capability: tuple[int, int],
    gigabytes: float,
    tera: tuple[float, ...],
    *,
    nvlink: bool = False,
    aliases: tuple[str, ...] = (),
) -> Gpu:
    """`memory`: GiB that torch was seen to report (float), or nvidia-smi's MiB (int).
    `tera`: 10^12 operations a second, (fp16, int8), from Ampere on also bf16 as fast as fp16, and
    from Ada on (fp16, int8, fp8)."""
    if isinstance(memory, float):
        nbytes, source = round(memory * _GIB), "measured"
    else:
        hidden = _HIDDEN_OF_LARGE if memory >= _LARGE_MIB else _HIDDEN
        nbytes = (memory << 20) - round(hidden * _GIB)
        source = f"nvidia-smi's {memory} MiB less {hidden} GiB, assumed from other cards"
    rates = dict(zip(("fp16", "int8", "fp8"), (rate * 1e12 for rate in tera), strict=False))
    if capability >= (8, 0):
        rates["bf16"] = rates["fp16"]
    return Gpu(
        name,
        nbytes,
        source,
        capability,
        gigabytes * 1e9,
        MappingProxyType(rates),
        nvlink,
        aliases,
    )


# Volta's tensor cores have no int8. Measured memory: a start-up log (V100-32G), else the capacity
# in out-of-memory messages of public repositories; drivers differ by up to 0.15 GiB.
GPUS = (
    _gpu("V100-16G", 16160, (7, 0), 900, (125,), nvlink=True, aliases=("V100-SXM2-16G",)),
    _gpu("V100-32G", 31.74, (7, 0), 900, (125,), nvlink=True, aliases=("V100-SXM2-32G",)),
    _gpu("T4", 15360, (7, 5), 320, (65, 130)),
    _gpu("2080Ti", 11264, (7, 5), 616, (53.8, 215.2), aliases=("2080Ti-11G",)),
    _gpu("2080Ti-22G", 22528, (7, 5), 616, (53.8, 215.2)),
    _gpu("3060", 12288, (8, 6), 360, (25.6, 102), aliases=("3060-12G",)),
    _gpu("3070", 8192, (8, 6), 448, (40.6, 163)),
    _gpu("3080", 10240, (8, 6), 760, (59.5, 238), aliases=("3080-10G",)),
    _gpu("3080-12G", 12288, (8, 6), 912, (61.3, 245)),
    _gpu("3080Ti", 12288, (8, 6), 912, (68.2, 273)),
    _gpu("3090", 23.56, (8, 6), 936, (71, 284), aliases=("3090-24G",)),
    _gpu("3090Ti", 24564, (8, 6), 1008, (80, 320)),
    _gpu("4060", 8188, (8, 9), 272, (30.2, 121, 60.5)),
    _gpu("4060Ti-8G", 8188, (8, 9), 288, (44.1, 176.5, 88.2)),
    _gpu("4060Ti-16G", 16380, (8, 9), 288, (44.1, 176.5, 88.2)),
    _gpu("4070", 12282, (8, 9), 504, (58.3, 233.2, 116.6)),
    _gpu("4070-Super", 12282, (8, 9), 504, (70.9, 283.7, 141.9)),
    _gpu("4070Ti", 12282, (8, 9), 504, (80.2, 320.7, 160.4)),
    _gpu("4070Ti-Super", 16376, (8, 9), 672, (88.2, 352.8, 176.4)),
    _gpu("4080", 16376, (8, 9), 717, (97.5, 389.9, 194.9)),
    _gpu("4080-Super", 16376, (8, 9), 736, (104.4, 417.7, 208.9)),
    _gpu("4090", 23.64, (8, 9), 1008, (165.2, 660.6, 330.3), aliases=("4090-24G",)),
    _gpu("5060Ti-16G", 16311, (12, 0), 448, (47.4, 189.8, 94.9)),
    _gpu("5070", 12227, (12, 0), 672, (61.7, 246.9, 123.5)),
    _gpu("5070Ti", 16303, (12, 0), 896, (87.9, 351.5, 175.8)),
    _gpu("5080", 15.48, (12, 0), 960, (112.6, 450.2, 225.1)),
    _gpu("5090", 31.36, (12, 0), 1792, (209.5, 838, 419), aliases=("5090-32G",)),
    _gpu("A4000", 16376, (8, 6), 448, (76.7, 153.4)),
    _gpu("A5000", 24564, (8, 6), 768, (111.1, 222.2)),
    _gpu("A6000", 49140, (8, 6), 768, (154.8, 309.7), aliases=("A6000-48G",)),
    _gpu("A10", 23028, (8, 6), 600, (125, 250)),
    _gpu("A10G", 23028, (8, 6), 600, (70, 140)),
    _gpu("A30", 23.53, (8, 0), 933, (165, 330)),
    _gpu("A40", 46068, (8, 6), 696, (149.7, 299.3)),
    _gpu("L4", 22.03, (8, 9), 300, (121, 242, 242)),
    _gpu("L40", 46068, (8, 9), 864, (181, 362, 362)),
    _gpu("L40S", 46068, (8, 9), 864, (362, 733, 733)),
    _gpu("RTX6000Ada", 49140, (8, 9), 960, (364.2, 728.5, 728.5), aliases=("RTX6000Ada-48G",)),
    _gpu(
        "RTX-PRO-6000",
        97887,
        (12, 0),
        1792,
        (503.8, 1007.6, 1007.6),
        aliases=("RTX PRO 6000 Blackwell", "RTX PRO 6000 Blackwell Workstation", "PRO6000-96G"),
    ),
    _gpu(
        "A100-40G",
        39.50,
        (8, 0),
        1555,
        (312, 624),
        aliases=("A100-PCIe-40G", "A100-SXM4-40G", "A100-SXM-40G"),
    ),
    _gpu("A100-80G", 79.25, (8, 0), 1935, (312, 624), aliases=("A100-80G-PCIe", "A100-PCIe-80G")),
    _gpu(
        "A100-SXM-80G",
        79.25,
        (8, 0),
        2039,
        (312, 624),
        nvlink=True,
        aliases=("A100-80G-SXM", "A100-SXM4-80G", "A100-80G-SXM4"),
    ),
    _gpu("H20", 97871, (9, 0), 4000, (148, 296, 296), nvlink=True),
    # Most of those that are rented by the card or in eights.
    _gpu(
        "H100-SXM",
        79.11,
        (9, 0),
        3350,
        (989.4, 1978.9, 1978.9),
        nvlink=True,
        aliases=("H100", "H100-80G", "H100-SXM5", "H100-80G-HBM3", "H100-SXM-80G"),
    ),
    _gpu("H100-PCIe", 79.11, (9, 0), 2039, (756, 1513, 1513), aliases=("H100-PCIe-80G",)),
    _gpu("H100-NVL", 95830, (9, 0), 3938, (835, 1671, 1671), nvlink=True, aliases=("H100-94G",)),
    _gpu(
        "H200",
        143771,
        (9, 0),
        4800,
        (989.4, 1978.9, 1978.9),
        nvlink=True,
        aliases=("H200-SXM", "H200-141G"),
    ),
    _gpu("B200", 178.35, (10, 0), 7700, (2250, 4500, 4500), nvlink=True),
    # Memory shared with the CPU: 128 GB less what the firmware keeps.
    _gpu("GB10", 122570, (12, 1), 273, (125, 250, 250), aliases=("DGX Spark",)),
)

_BY_NAME = {_squeezed(name): gpu for gpu in GPUS for name in (gpu.name, *gpu.aliases)}
