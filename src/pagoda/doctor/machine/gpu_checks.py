"""What the facts of NVIDIA's GPUs and their driver mean to whoever wants to run a model."""

from collections.abc import Iterator

from pagoda.base.units import format_bytes
from pagoda.doctor.findings import Finding
from pagoda.doctor.machine.gpus import GpuFacts, Gpus
from pagoda.doctor.machine.probe import Software

NO_GPU = "no NVIDIA GPU here; models run on the CPU"
# Oldest driver of each CUDA (its release notes; minor releases run on the same one).
_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
# Compute capabilities that a CUDA compiles for: from the release notes of those that drop or add.
_OLDEST = {13: (7, 5)}
_BLACKWELL, _CUDA_OF_BLACKWELL = (10, 0), (12, 8)
_OTHER_TORCH = "Install the torch that fits (pytorch.org shows the command)"
_SMALL_SHM = 1 << 30  # docker gives 64 MiB
_ENOUGH_FREE = 0.5


def gpu_findings(gpus: Gpus, software: Software, shm_free: int | None) -> Iterator[Finding]:
    """One per GPU, and those of the driver, torch, NVLink and /dev/shm where there are GPUs."""
    if gpus.error:
        yield _unreachable(gpus, software)
        return
    if not gpus.devices:
        yield Finding("gpu", "SKIP", NO_GPU)
        return
    usable = [gpu for gpu in gpus.devices if gpu.visible]
    for gpu in gpus.devices:
        yield from _gpu(gpu, software)
    if usable:
        yield from _driver(gpus, software)
    if len(usable) > 1:
        yield from _several(usable, shm_free)


def _unreachable(gpus: Gpus, software: Software) -> Finding:
    if "different versions" in gpus.error:
        fix = "Reboot."
    elif software.container:
        fix = "Give the container its GPUs: docker run --gpus all (NVIDIA Container Toolkit)."
    else:
        fix = "Install NVIDIA's driver and reboot; `nvidia-smi` then lists the GPU."
    text = f"an NVIDIA GPU is in this machine, but {gpus.error}; models run on the CPU"
    return Finding("gpu", "WARN", text, fix)


def _gpu(gpu: GpuFacts, software: Software) -> Iterator[Finding]:
    topic = f"gpu {gpu.index}"
    if not gpu.visible:
        text = f"{gpu.name}, left out by CUDA_VISIBLE_DEVICES as asked"
        yield Finding(topic, "SKIP", text)
        return
    text = f"{gpu.name}: {_memory(gpu)}, {_types(gpu)}"
    if gpu.total_memory and (gpu.free_memory or 0) < _ENOUGH_FREE * gpu.total_memory:
        yield Finding(topic, "WARN", f"{text}; {_users(gpu)}", _free_it(gpu))
    elif gpu.processes:
        yield Finding(topic, "PASS", f"{text}; {_users(gpu)}")
    else:
        yield Finding(topic, "PASS", text)
    if gpu.slowed:
        yield Finding(
            topic, "WARN", "heat or the power supply holds its clocks down now",
            "Look at its fans and power cables; `nvidia-smi -q -d PERFORMANCE` names the reason.",
        )  # fmt: skip
    if gpu.memory_errors:
        yield Finding(
            topic, "WARN",
            f"{gpu.memory_errors} times its memory was wrong beyond repair since the driver was "
            "loaded; results may be wrong",
            "Reboot; if it happens again, have the card replaced (`nvidia-smi -q -d ECC`).",
        )  # fmt: skip
    problem = _torch_problem(gpu, software)
    if problem:
        yield Finding(topic, "WARN", problem, f"{_OTHER_TORCH}; --device cpu runs without.")


def _memory(gpu: GpuFacts) -> str:
    if gpu.total_memory is None or gpu.free_memory is None:
        return "shares the machine's memory"
    return f"{format_bytes(gpu.free_memory)} of {format_bytes(gpu.total_memory)} free"


def _types(gpu: GpuFacts) -> str:
    capability = "compute capability {}.{}".format(*gpu.capability)
    native = ", ".join(gpu.native) or "float32"
    text = f"{capability} ({native})"
    if "bfloat16" not in gpu.native:
        # bf16 is the type of nearly every checkpoint, so whoever knows that would wonder.
        text += "; bfloat16 models run in float16 here, as they should"
    return text


def _users(gpu: GpuFacts) -> str:
    if not gpu.processes:
        return "other processes hold the rest"
    shown = [_process(p.name, p.pid, p.memory) for p in gpu.processes[:3]]
    more = len(gpu.processes) - len(shown)
    return ", ".join(shown) + (f" and {more} more use it" if more else " in use")


def _process(name: str, pid: int, memory: int | None) -> str:
    who = f"{name} (pid {pid})" if name else f"a program outside this container (pid {pid} there)"
    return who if memory is None else f"{who} {format_bytes(memory)}"


def _free_it(gpu: GpuFacts) -> str:
    free = format_bytes(gpu.free_memory or 0)
    named = next((p for p in gpu.processes if p.name), None)
    end = f"`kill {named.pid}` ends {named.name} if it is yours" if named else "End what uses it"
    return f"{end}; or choose a model and context that fit in {free}."


def _torch_problem(gpu: GpuFacts, software: Software) -> str:
    """Why the installed torch cannot compute on this GPU."""
    cuda = software.torch_cuda
    if cuda is None:
        return ""
    capability = "{}.{}".format(*gpu.capability)
    built = "torch {} is built for CUDA {}.{}".format(software.torch, *cuda)
    if gpu.capability < _OLDEST.get(cuda[0], (0, 0)):
        return f"{built}, which left out compute capability {capability}"
    if gpu.capability >= _BLACKWELL and cuda < _CUDA_OF_BLACKWELL:
        return f"{built}, which does not know compute capability {capability} yet"
    return ""


def _driver(gpus: Gpus, software: Software) -> Iterator[Finding]:
    offered = "CUDA {}.{}".format(*gpus.cuda) if gpus.cuda else "an unknown CUDA"
    text = f"{gpus.driver} (up to {offered})"
    if software.torch is None:
        yield Finding("driver", "PASS", text)
    elif software.torch_cuda is None:
        yield Finding(
            "driver", "WARN",
            f"{text}; torch {software.torch} only knows the CPU, so no GPU is used",
            f"{_OTHER_TORCH}.",
        )  # fmt: skip
    elif gpus.cuda and gpus.cuda[0] < software.torch_cuda[0]:
        needed = software.torch_cuda[0]
        oldest = _DRIVERS.get(needed)
        update = f"Update the driver to {oldest} or later" if oldest else "Update the driver"
        yield Finding(
            "driver", "WARN",
            f"{text} is too old for torch {software.torch}, built for CUDA {needed}",
            f"{update}, or install a torch for CUDA {gpus.cuda[0]} (pytorch.org shows the "
            "command).",
        )  # fmt: skip
    else:
        built = "torch is built for {}.{}".format(*software.torch_cuda)
        yield Finding("driver", "PASS", f"{text}; {built}")


def _several(gpus: list[GpuFacts], shm_free: int | None) -> Iterator[Finding]:
    linked = [gpu for gpu in gpus if gpu.links]
    if len(linked) == len(gpus):
        text = f"{min(gpu.links for gpu in gpus)} NVLinks per GPU"
    elif linked:
        text = f"NVLink on {len(linked)} of {len(gpus)} GPUs; the others talk over PCIe"
    else:
        text = "GPUs talk over PCIe; no NVLink is needed"
    yield Finding("nvlink", "PASS", text)
    if shm_free is not None and shm_free < _SMALL_SHM:
        yield Finding(
            "shm", "WARN",
            f"/dev/shm has {format_bytes(shm_free)} free, and several GPUs exchange data there",
            "docker run --shm-size=2g or --ipc=host; outside a container "
            "sudo mount -o remount,size=2G /dev/shm",
        )  # fmt: skip
