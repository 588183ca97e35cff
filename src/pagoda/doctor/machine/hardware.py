"""What a plan is for: this machine, or GPUs that are not here."""

from dataclasses import dataclass, replace

from pagoda.base.errors import ConfigError
from pagoda.base.facts import DeviceFacts
from pagoda.base.words import say
from pagoda.doctor.machine.probe import Machine
from pagoda.kernels import cpu
from pagoda.kernels.triton.products.layouts import STORAGES, kept_here
from pagoda.planner.devices.gpus import Gpu, find_gpus

_BF16 = (8, 0)
# Context and libraries of one process on a GPU that nothing else uses: 0.3 to 0.5 GiB with
# CUDA 12 and 13.
_CUDA_CONTEXT = 450 << 20
# The HTTP server beside the engine, which finds it taken already: 88 MiB of anonymous memory with
# Python 3.11.
_SERVER = 88 << 20


@dataclass(frozen=True)
class Hardware:
    facts: DeviceFacts
    """Facts of one device."""
    count: int
    """Devices of that kind."""
    here: bool
    gpu: Gpu | None = None
    """None for a CPU, and for a GPU that no table has."""
    capability: tuple[int, int] | None = None
    address_space: int | None = None
    """Bytes of addresses that a process on this CPU may have (`ulimit -v`); None where all."""

    @property
    def used(self) -> int:
        """Bytes that others hold of one GPU."""
        if not self.here or self.facts.device == "cpu":
            return 0
        return max(0, self.facts.total_memory - self.facts.free_memory - _CUDA_CONTEXT)

    @property
    def name(self) -> str:
        return f"{self.count} x {self.facts.name}" if self.count > 1 else self.facts.name


def elsewhere(text: str, wanted: int = 1) -> Hardware:
    """GPUs by name, `A100-80G` or `3090x4`, with nothing else on them; ConfigError if unknown. Of
    one that is named without a number there are as many as are `wanted`."""
    gpu, count = find_gpus(text)
    count = wanted if count == 1 else count
    facts = DeviceFacts(
        device="cuda",
        total_memory=gpu.memory,
        free_memory=gpu.memory - _CUDA_CONTEXT,
        num_threads=1,
        supports_bf16=gpu.capability >= _BF16,
        name=gpu.name,
        capability=_number(gpu.capability),
        packed_storages=STORAGES,
    )
    return Hardware(facts, count, here=False, gpu=gpu, capability=gpu.capability)


def this_machine(machine: Machine, device: str) -> Hardware:
    """`device` as `--device`: `auto` takes GPUs where torch could use them, else the CPU.

    ConfigError where a GPU is asked for and none is there.
    """
    visible = [gpu for gpu in machine.gpus.devices if gpu.visible and gpu.total_memory]
    usable = visible and machine.software.torch_cuda is not None
    if device == "cuda" and not visible:
        raise ConfigError(
            say(
                "--device cuda: no NVIDIA GPU is visible here; leave it out, or plan for one that "
                "is elsewhere with --gpu NAME."
            )
        )
    if device == "cpu" or not (usable or device == "cuda"):
        space = machine.software.address_space
        facts = cpu.device_facts()
        facts = replace(facts, free_memory=max(0, facts.free_memory - _SERVER))
        return Hardware(facts, 1, here=True, address_space=space)
    first = visible[0]
    alike = [gpu for gpu in visible if gpu.name == first.name]
    least = min(gpu.free_memory or 0 for gpu in alike)
    facts = DeviceFacts(
        device="cuda",
        total_memory=first.total_memory or 0,
        free_memory=max(0, least - _CUDA_CONTEXT),
        num_threads=machine.cpu.threads,
        supports_bf16=first.capability >= _BF16,
        name=first.name,
        capability=_number(first.capability),
        host_memory=machine.memory.available,
        packed_storages=kept_here(),
    )
    try:
        gpu, _ = find_gpus(first.name)
    except ConfigError:
        gpu = None
    return Hardware(facts, len(alike), here=True, gpu=gpu, capability=first.capability)


def _number(capability: tuple[int, int] | None) -> int:
    """As DeviceFacts has it."""
    return 0 if capability is None else 10 * capability[0] + capability[1]
