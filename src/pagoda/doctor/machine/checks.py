"""What the facts of a machine mean to whoever wants to run a model on it."""

from collections.abc import Iterator

from pagoda.base.units import format_bytes, format_seconds
from pagoda.doctor.findings import Finding
from pagoda.doctor.machine.gpu_checks import gpu_findings
from pagoda.doctor.machine.probe import Cpu, Kernels, Machine, Memory, Software

_GIB = 1 << 30
_LEAST_MEMORY = _GIB // 2  # what the planner leaves free beside a model on a CPU
_LITTLE_MEMORY = 2 * _GIB
_LITTLE_DISK = 5 * _GIB  # a model of 8 billion parameters in four bits
_SLOW_DISK = 100e6  # bytes per second: a hard disk, or a network's
# Share of the time in which everything waits for memory: what was pushed out is read back over
# and over.
_THRASHING = 0.1
_MUCH_SWAPPED = 0.25
# Each connection takes a file, and several dozen are the process's own.
_FEW_FILES = 1024
_NAMES_THEM = "`journalctl -k | grep -i 'killed process'` (or `dmesg`) names them"


def findings(machine: Machine) -> list[Finding]:
    """One for each fact that says something, a function of the facts alone."""
    memory, software = machine.memory, machine.software
    return [
        *_software(software),
        *_container(machine),
        *_cpu(machine.cpu),
        *_kernels(machine.kernels),
        *_memory(memory, software),
        *_swap(memory),
        *_oom(memory),
        *_limits(memory, software),
        *_huge_pages(memory, machine.kernels),
        *gpu_findings(machine.gpus, software, memory.shm_free),
        *_disk(machine),
    ]


def checkpoint_findings(machine: Machine, nbytes: int) -> list[Finding]:
    """Whether weights of `nbytes`, kept on the CPU, fit into the memory that is free now, and how
    long the disk takes to read them."""
    memory, size = machine.memory, format_bytes(nbytes)
    available, speed = memory.available, machine.disk.read_speed
    if nbytes + _LEAST_MEMORY > memory.usable:
        fits = Finding(
            "weights", "FAIL",
            f"{size} of weights do not fit in {format_bytes(memory.usable)} of memory",
            _smaller_model(memory),
        )  # fmt: skip
    elif nbytes + _LEAST_MEMORY > available:
        fits = Finding(
            "weights", "WARN",
            f"{size} of weights do not fit in the {format_bytes(available)} of memory that are "
            "available now",
            "End other programs (`ps aux --sort=-rss | head` lists the largest), or choose a "
            "smaller quantization.",
        )  # fmt: skip
    else:
        text = f"{size} of weights fit in {format_bytes(available)} of available memory"
        fits = Finding("weights", "PASS", text)
    if not speed:
        return [fits]
    seconds = format_seconds(nbytes / speed)
    return [fits, Finding("load", "PASS", f"about {seconds} to read {size} from disk (estimate)")]


def _smaller_model(memory: Memory) -> str:
    if memory.limit is not None:
        return (
            "Raise the container's memory limit (docker run --memory), or choose a smaller model."
        )
    return "Choose a smaller model or a smaller quantization."


def _software(software: Software) -> Iterator[Finding]:
    if software.torch is None:
        yield Finding(
            "versions", "FAIL", "torch is not installed, and Pagoda's engine needs it",
            "pip install --force-reinstall pagoda-llm",
        )  # fmt: skip
        return
    parts = [f"Pagoda {software.pagoda}", f"Python {software.python}", f"torch {software.torch}"]
    if software.triton is not None:
        parts.append(f"triton {software.triton}")
    yield Finding("versions", "PASS", f"{', '.join(parts)}, Linux {software.kernel}")


def _container(machine: Machine) -> Iterator[Finding]:
    software, limit, quota = machine.software, machine.memory.limit, machine.cpu.quota
    if software.wsl == 1:
        yield Finding(
            "wsl", "WARN", "WSL 1 translates every system call and has no GPU",
            "wsl --set-version DISTRIBUTION 2 (in Windows)",
        )  # fmt: skip
    elif software.wsl == 2:
        text = "WSL 2; Windows gives it half of the memory unless .wslconfig says memory=..."
        yield Finding("wsl", "PASS", text)
    if not software.container and limit is None and quota is None:
        return
    where = f"in a {software.container} container" if software.container else "in a control group"
    bounds = []
    if limit is not None:
        bounds.append(f"{format_bytes(limit)} of memory")
    if quota is not None:
        bounds.append(f"{quota:g} CPUs")
    text = f"{where}, limited to {' and '.join(bounds)}" if bounds else f"{where}, without limits"
    yield Finding("container", "PASS", text)


def _cpu(cpu: Cpu) -> Iterator[Finding]:
    caches = ", ".join(
        f"L{cache.level} {format_bytes(cache.nbytes).replace('.00', '')}" for cache in cpu.caches
    )
    cores = _count(cpu.cores, "core")
    text = f"{cpu.name}: {cores}, Pagoda uses {_count(cpu.threads, 'thread')}"
    text += f"; {caches}" if caches else ""
    if cpu.affinity < cpu.present:
        text += f"; this process may run on {cpu.affinity} of {cpu.present} hardware threads"
    if cpu.quota is not None and cpu.quota < 2 <= cpu.affinity:
        yield Finding(
            "cpu", "WARN",
            f"{text}; the container may use {cpu.quota:g} CPUs of {cpu.affinity}",
            f"Give the container more (docker run --cpus {cpu.affinity}).",
        )  # fmt: skip
    else:
        yield Finding("cpu", "PASS", text)


def _kernels(kernels: Kernels) -> Iterator[Finding]:
    if not kernels.sets:
        yield Finding(
            "kernels", "WARN",
            "Pagoda was installed without its native kernels; a CPU then computes with torch, "
            "several times slower",
            "Install a C++ compiler (Debian: apt install g++), then "
            "pip install --force-reinstall --no-cache-dir --no-deps pagoda-llm",
        )  # fmt: skip
    elif kernels.isa is None and kernels.wanted != "none":
        yield Finding(
            "kernels", "FAIL",
            f"PAGODA_CPU_ISA is {kernels.wanted!r}, which is no instruction set of this build",
            f"unset PAGODA_CPU_ISA, or set it to {', '.join(kernels.sets)} or none",
        )  # fmt: skip
    elif kernels.isa is None:
        yield Finding(
            "kernels", "WARN", "PAGODA_CPU_ISA=none switches the native kernels off",
            "unset PAGODA_CPU_ISA",
        )  # fmt: skip
    elif kernels.sets[0] == "generic":
        yield Finding(
            "kernels", "WARN",
            "this CPU shows none of the vector instructions that the native kernels have forms for",
            "In a virtual machine pass the host's CPU through (QEMU: -cpu host); else any CPU "
            "with AVX2 (2013) or later is several times faster.",
        )  # fmt: skip
    elif kernels.isa != kernels.sets[0]:
        text = f"native, {kernels.isa}, as PAGODA_CPU_ISA says; the CPU could do {kernels.sets[0]}"
        yield Finding("kernels", "PASS", text)
    else:
        yield Finding("kernels", "PASS", f"native, {kernels.isa}")


def _memory(memory: Memory, software: Software) -> Iterator[Finding]:
    text = f"{format_bytes(memory.available)} of {format_bytes(memory.usable)} available"
    fix = "End other programs (`ps aux --sort=-rss | head` lists the largest)"
    if memory.limit is not None:
        fix += ", or raise the container's limit (docker run --memory)"
    elif software.wsl:
        fix += ", or give WSL more (.wslconfig: memory=...)"
    if memory.available < _LEAST_MEMORY:
        yield Finding("memory", "FAIL", f"only {text}: too little for any model", f"{fix}.")
    elif memory.available < _LITTLE_MEMORY:
        small = f"only {text}: enough for models below a billion parameters"
        yield Finding("memory", "WARN", small, f"{fix}.")
    else:
        yield Finding("memory", "PASS", text)


def _swap(memory: Memory) -> Iterator[Finding]:
    used = f"{format_bytes(memory.swap_used)} of {format_bytes(memory.swap_total)} swap in use"
    stop = "End other programs (`ps aux --sort=-rss | head` lists the largest)"
    if memory.pressure is not None and memory.pressure >= _THRASHING:
        yield Finding(
            "swap", "WARN",
            f"everything waits for memory {memory.pressure:.0%} of the time; {used}",
            f"{stop}, or serve a smaller model.",
        )  # fmt: skip
    elif memory.swap_total and memory.swap_used >= _MUCH_SWAPPED * memory.swap_total:
        yield Finding(
            "swap", "WARN",
            f"{used}: weights that are swapped out come back from disk for every token",
            f"{stop}; then `sudo swapoff -a && sudo swapon -a` brings back what was swapped out.",
        )  # fmt: skip
    elif memory.swap_total:
        yield Finding("swap", "PASS", used)
    else:
        yield Finding("swap", "PASS", "no swap; models do not need any")


def _oom(memory: Memory) -> Iterator[Finding]:
    if memory.oom_kills_inside:
        yield Finding(
            "oom", "WARN",
            f"the kernel ended {_count(memory.oom_kills_inside, 'process', 'processes')} of this "
            "container for lack of memory",
            f"Raise its limit (docker run --memory) or serve a smaller model; {_NAMES_THEM}.",
        )  # fmt: skip
    elif memory.oom_kills:
        yield Finding(
            "oom", "WARN",
            f"the kernel ended {_count(memory.oom_kills, 'process', 'processes')} for lack of "
            "memory since this machine started",
            f"If Pagoda was among them, lower --max-model-len or serve a smaller model; "
            f"{_NAMES_THEM}.",
        )  # fmt: skip
    else:
        yield Finding("oom", "PASS", "no process was ended for lack of memory")


def _limits(memory: Memory, software: Software) -> Iterator[Finding]:
    if software.address_space is not None:
        yield Finding(
            "limits", "WARN",
            f"a process may have {format_bytes(software.address_space)} of addresses, and a "
            "mapped checkpoint counts in full",
            "ulimit -v unlimited",
        )  # fmt: skip
    if software.open_files is not None and software.open_files < _FEW_FILES:
        yield Finding(
            "limits", "WARN",
            f"a process may open {software.open_files} files, and each connection takes one",
            "Raise it: ulimit -Hn 65536 as root (docker run --ulimit nofile=65536).",
        )  # fmt: skip
    if memory.commit_left is not None and memory.commit_left < memory.available:
        yield Finding(
            "limits", "WARN",
            "the kernel counts reserved memory as used (vm.overcommit_memory=2) and grants "
            f"{format_bytes(max(0, memory.commit_left))} more, less than what is available",
            "sudo sysctl vm.overcommit_memory=0",
        )  # fmt: skip


def _huge_pages(memory: Memory, kernels: Kernels) -> Iterator[Finding]:
    if memory.huge_pages == "never" and kernels.isa is not None:
        yield Finding(
            "pages", "WARN",
            "transparent huge pages are off, and the native kernels read weights faster from them",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )  # fmt: skip


def _disk(machine: Machine) -> Iterator[Finding]:
    disk, slow = machine.disk, "Keep models on an SSD of this machine: PAGODA_CACHE=FOLDER"
    if disk.free is not None and disk.free < _LITTLE_DISK:
        yield Finding(
            "disk", "WARN", f"{format_bytes(disk.free)} free in {disk.folder}",
            "`pagoda rm MODEL` makes room (`pagoda list` shows sizes), or keep models elsewhere: "
            "PAGODA_CACHE=FOLDER",
        )  # fmt: skip
    elif disk.free is not None:
        yield Finding("disk", "PASS", f"{format_bytes(disk.free)} free in {disk.folder}")
    if disk.read_speed is None:
        return
    speed = f"{_speed(disk.read_speed)} (estimate)"
    if disk.read_speed >= _SLOW_DISK:
        yield Finding("disk", "PASS", f"reads {speed}")
        return
    if machine.software.wsl:
        slow = "Keep models within Linux, not under /mnt/c: PAGODA_CACHE=~/.cache/pagoda"
    text = f"reads {speed}: a model of 5 GiB takes {format_seconds(5 * _GIB / disk.read_speed)}"
    yield Finding("disk", "WARN", text, slow)


def _speed(speed: float) -> str:
    return f"{speed / 1e9:.1f} GB/s" if speed >= 1e9 else f"{speed / 1e6:.0f} MB/s"


def _count(number: int, one: str, several: str = "") -> str:
    return f"{number} {one}" if number == 1 else f"{number} {several or one + 's'}"
