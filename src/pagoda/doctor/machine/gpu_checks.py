"""What the facts of NVIDIA's GPUs and their driver mean to whoever wants to run a model."""

from collections.abc import Iterator

from pagoda.base.units import format_bytes
from pagoda.base.words import say, with_commas
from pagoda.doctor.findings import Finding
from pagoda.doctor.machine.gpus import GpuFacts, Gpus
from pagoda.doctor.machine.probe import Software

NO_GPU = say("no NVIDIA GPU here; models run on the CPU")
# Oldest driver of each CUDA (its release notes; minor releases run on the same one).
_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
# Compute capabilities that a CUDA compiles for: from the release notes of those that drop or add.
_OLDEST = {13: (7, 5)}
_BLACKWELL, _CUDA_OF_BLACKWELL = (10, 0), (12, 8)
_OTHER_TORCH = say("Install the torch that fits (pytorch.org shows the command)")
_SMALL_SHM = 1 << 30  # docker gives 64 MiB
_ENOUGH_FREE = 0.5
_SHOWN = 3  # processes of a GPU


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
        fix = say("Reboot.")
    elif software.container:
        fix = say("Give the container its GPUs: docker run --gpus all (NVIDIA Container Toolkit).")
    else:
        fix = say("Install NVIDIA's driver and reboot; `nvidia-smi` then lists the GPU.")
    text = say(
        "an NVIDIA GPU is in this machine, but {error}; models run on the CPU", error=gpus.error
    )
    return Finding("gpu", "WARN", text, fix)


def _gpu(gpu: GpuFacts, software: Software) -> Iterator[Finding]:
    topic = f"gpu {gpu.index}"
    if not gpu.visible:
        text = say("{name}, left out by CUDA_VISIBLE_DEVICES as asked", name=gpu.name)
        yield Finding(topic, "SKIP", text)
        return
    text = say("{name}: {memory}, {types}", name=gpu.name, memory=_memory(gpu), types=_types(gpu))
    used = say("{first}; {last}", first=text, last=_users(gpu))
    if gpu.total_memory and (gpu.free_memory or 0) < _ENOUGH_FREE * gpu.total_memory:
        yield Finding(topic, "WARN", used, _free_it(gpu))
    elif gpu.processes:
        yield Finding(topic, "PASS", used)
    else:
        yield Finding(topic, "PASS", text)
    if gpu.slowed:
        yield Finding(
            topic, "WARN", say("heat or the power supply holds its clocks down now"),
            say(
                "Look at its fans and power cables; `nvidia-smi -q -d PERFORMANCE` names the "
                "reason."
            ),
        )  # fmt: skip
    if gpu.memory_errors:
        yield Finding(
            topic, "WARN",
            say(
                "{count} times its memory was wrong beyond repair since the driver was loaded; "
                "results may be wrong",
                count=gpu.memory_errors,
            ),
            say("Reboot; if it happens again, have the card replaced (`nvidia-smi -q -d ECC`)."),
        )  # fmt: skip
    problem = _torch_problem(gpu, software)
    if problem:
        fix = say("{install}; --device cpu runs without.", install=_OTHER_TORCH)
        yield Finding(topic, "WARN", problem, fix)


def _memory(gpu: GpuFacts) -> str:
    if gpu.total_memory is None or gpu.free_memory is None:
        return say("shares the machine's memory")
    free, total = format_bytes(gpu.free_memory), format_bytes(gpu.total_memory)
    return say("{free} of {total} free", free=free, total=total)


def _types(gpu: GpuFacts) -> str:
    text = say(
        "compute capability {capability} ({native})",
        capability="{}.{}".format(*gpu.capability), native=", ".join(gpu.native) or "float32",
    )  # fmt: skip
    if "bfloat16" not in gpu.native:
        # bf16 is the type of nearly every checkpoint, so whoever knows that would wonder.
        return say("{text}; bfloat16 models run in float16 here, as they should", text=text)
    return text


def _users(gpu: GpuFacts) -> str:
    if not gpu.processes:
        return say("other processes hold the rest")
    shown = with_commas(_process(p.name, p.pid, p.memory) for p in gpu.processes[:_SHOWN])
    more = len(gpu.processes) - _SHOWN
    if more > 0:
        return say("{shown} and {more} more use it", shown=shown, more=more)
    return say("{shown} in use", shown=shown)


def _process(name: str, pid: int, memory: int | None) -> str:
    who = say("a program outside this container (pid {pid} there)", pid=pid)
    if name:
        who = say("{name} (pid {pid})", name=name, pid=pid)
    return who if memory is None else say("{who} {size}", who=who, size=format_bytes(memory))


def _free_it(gpu: GpuFacts) -> str:
    free = format_bytes(gpu.free_memory or 0)
    named = next((p for p in gpu.processes if p.name), None)
    end = say("End what uses it")
    if named:
        end = say("`kill {pid}` ends {name} if it is yours", pid=named.pid, name=named.name)
    return say("{end}; or choose a model and context that fit in {free}.", end=end, free=free)


def _torch_problem(gpu: GpuFacts, software: Software) -> str:
    """Why the installed torch cannot compute on this GPU."""
    cuda = software.torch_cuda
    if cuda is None:
        return ""
    capability = "{}.{}".format(*gpu.capability)
    known = {"torch": software.torch, "cuda": "{}.{}".format(*cuda), "capability": capability}
    if gpu.capability < _OLDEST.get(cuda[0], (0, 0)):
        return say(
            "torch {torch} is built for CUDA {cuda}, which left out compute capability "
            "{capability}",
            **known,
        )
    if gpu.capability >= _BLACKWELL and cuda < _CUDA_OF_BLACKWELL:
        return say(
            "torch {torch} is built for CUDA {cuda}, which does not know compute capability "
            "{capability} yet",
            **known,
        )
    return ""


def _driver(gpus: Gpus, software: Software) -> Iterator[Finding]:
    offered = "CUDA {}.{}".format(*gpus.cuda) if gpus.cuda else say("an unknown CUDA")
    text = say("{driver} (up to {cuda})", driver=gpus.driver, cuda=offered)
    if software.torch is None:
        yield Finding("driver", "PASS", text)
    elif software.torch_cuda is None:
        yield Finding(
            "driver", "WARN",
            say(
                "{driver}; torch {torch} only knows the CPU, so no GPU is used",
                driver=text, torch=software.torch,
            ),
            say("{install}.", install=_OTHER_TORCH),
        )  # fmt: skip
    elif gpus.cuda and gpus.cuda[0] < software.torch_cuda[0]:
        needed = software.torch_cuda[0]
        oldest = _DRIVERS.get(needed)
        update = say("Update the driver")
        if oldest:
            update = say("Update the driver to {oldest} or later", oldest=oldest)
        yield Finding(
            "driver", "WARN",
            say(
                "{driver} is too old for torch {torch}, built for CUDA {cuda}",
                driver=text, torch=software.torch, cuda=needed,
            ),
            say(
                "{update}, or install a torch for CUDA {cuda} (pytorch.org shows the command).",
                update=update, cuda=gpus.cuda[0],
            ),
        )  # fmt: skip
    else:
        built = "{}.{}".format(*software.torch_cuda)
        whole = say("{driver}; torch is built for {cuda}", driver=text, cuda=built)
        yield Finding("driver", "PASS", whole)


def _several(gpus: list[GpuFacts], shm_free: int | None) -> Iterator[Finding]:
    linked = [gpu for gpu in gpus if gpu.links]
    if len(linked) == len(gpus):
        text = say("{count} NVLinks per GPU", count=min(gpu.links for gpu in gpus))
    elif linked:
        text = say(
            "NVLink on {some} of {all} GPUs; the others talk over PCIe",
            some=len(linked), all=len(gpus),
        )  # fmt: skip
    else:
        text = say("GPUs talk over PCIe; no NVLink is needed")
    yield Finding("nvlink", "PASS", text)
    if shm_free is not None and shm_free < _SMALL_SHM:
        yield Finding(
            "shm", "WARN",
            say(
                "/dev/shm has {size} free, and several GPUs exchange data there",
                size=format_bytes(shm_free),
            ),
            say(
                "docker run --shm-size=2g or --ipc=host; outside a container "
                "sudo mount -o remount,size=2G /dev/shm"
            ),
        )  # fmt: skip
