"""What the facts of a machine mean to whoever wants to run a model on it."""

from collections.abc import Iterator

from pagoda.base.units import format_bytes, format_seconds
from pagoda.base.words import say, with_commas
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
_END_OTHERS = say("End other programs (`ps aux --sort=-rss | head` lists the largest)")
_NAMES_THEM = say("`journalctl -k | grep -i 'killed process'` (or `dmesg`)")


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
            say(
                "{size} of weights do not fit in {memory} of memory",
                size=size, memory=format_bytes(memory.usable),
            ),
            _smaller_model(memory),
        )  # fmt: skip
    elif nbytes + _LEAST_MEMORY > available:
        fits = Finding(
            "weights", "WARN",
            say(
                "{size} of weights do not fit in the {memory} of memory that are available now",
                size=size, memory=format_bytes(available),
            ),
            say("{end}, or choose a smaller quantization.", end=_END_OTHERS),
        )  # fmt: skip
    else:
        text = say(
            "{size} of weights fit in {memory} of available memory",
            size=size, memory=format_bytes(available),
        )  # fmt: skip
        fits = Finding("weights", "PASS", text)
    if not speed:
        return [fits]
    seconds = format_seconds(nbytes / speed)
    text = say("about {seconds} to read {size} from disk (estimate)", seconds=seconds, size=size)
    return [fits, Finding("load", "PASS", text)]


def _smaller_model(memory: Memory) -> str:
    if memory.limit is not None:
        return say(
            "Raise the container's memory limit (docker run --memory), or choose a smaller model."
        )
    return say("Choose a smaller model or a smaller quantization.")


def _software(software: Software) -> Iterator[Finding]:
    if software.torch is None:
        yield Finding(
            "versions", "FAIL", say("torch is not installed, and Pagoda's engine needs it"),
            "pip install --force-reinstall pagoda-llm",
        )  # fmt: skip
        return
    parts = [f"Pagoda {software.pagoda}", f"Python {software.python}", f"torch {software.torch}"]
    if software.triton is not None:
        parts.append(f"triton {software.triton}")
    yield Finding("versions", "PASS", with_commas([*parts, f"Linux {software.kernel}"]))


def _container(machine: Machine) -> Iterator[Finding]:
    software, limit, quota = machine.software, machine.memory.limit, machine.cpu.quota
    if software.wsl == 1:
        yield Finding(
            "wsl", "WARN", say("WSL 1 translates every system call and has no GPU"),
            say("wsl --set-version DISTRIBUTION 2 (in Windows)"),
        )  # fmt: skip
    elif software.wsl == 2:
        text = say("WSL 2; Windows gives it half of the memory unless .wslconfig says memory=...")
        yield Finding("wsl", "PASS", text)
    if not software.container and limit is None and quota is None:
        return
    where = say("in a control group")
    if software.container:
        where = say("in a {kind} container", kind=software.container)
    yield Finding("container", "PASS", _bounded(where, limit, quota))


def _bounded(where: str, memory: int | None, cpus: float | None) -> str:
    if memory is None and cpus is None:
        return say("{where}, without limits", where=where)
    if memory is None:
        return say("{where}, limited to {cpus:g} CPUs", where=where, cpus=cpus)
    size = format_bytes(memory)
    if cpus is None:
        return say("{where}, limited to {size} of memory", where=where, size=size)
    return say(
        "{where}, limited to {size} of memory and {cpus:g} CPUs",
        where=where, size=size, cpus=cpus,
    )  # fmt: skip


def _cpu(cpu: Cpu) -> Iterator[Finding]:
    caches = [
        f"L{cache.level} {format_bytes(cache.nbytes).replace('.00', '')}" for cache in cpu.caches
    ]
    text = say(
        "{name}: {cores}, Pagoda uses {threads}",
        name=cpu.name,
        cores=say("{count} core" if cpu.cores == 1 else "{count} cores", count=cpu.cores),
        threads=say("{count} thread" if cpu.threads == 1 else "{count} threads", count=cpu.threads),
    )
    if caches:
        text = say("{first}; {last}", first=text, last=with_commas(caches))
    if cpu.affinity < cpu.present:
        text = say(
            "{text}; this process may run on {some} of {all} hardware threads",
            text=text, some=cpu.affinity, all=cpu.present,
        )  # fmt: skip
    if cpu.quota is not None and cpu.quota < 2 <= cpu.affinity:
        yield Finding(
            "cpu", "WARN",
            say(
                "{text}; the container may use {some:g} CPUs of {all}",
                text=text, some=cpu.quota, all=cpu.affinity,
            ),
            say("Give the container more (docker run --cpus {count}).", count=cpu.affinity),
        )  # fmt: skip
    else:
        yield Finding("cpu", "PASS", text)


def _kernels(kernels: Kernels) -> Iterator[Finding]:
    if not kernels.sets:
        yield Finding(
            "kernels", "WARN",
            say(
                "Pagoda was installed without its native kernels; a CPU then computes with torch, "
                "several times slower"
            ),
            say(
                "Install a C++ compiler (Debian: apt install g++), then "
                "pip install --force-reinstall --no-cache-dir --no-deps pagoda-llm"
            ),
        )  # fmt: skip
    elif kernels.isa is None and kernels.wanted != "none":
        yield Finding(
            "kernels", "FAIL",
            say(
                "PAGODA_CPU_ISA is {wanted!r}, which is no instruction set of this build",
                wanted=kernels.wanted,
            ),
            say(
                "unset PAGODA_CPU_ISA, or set it to {known} or none",
                known=with_commas(kernels.sets),
            ),
        )  # fmt: skip
    elif kernels.isa is None:
        yield Finding(
            "kernels", "WARN", say("PAGODA_CPU_ISA=none switches the native kernels off"),
            "unset PAGODA_CPU_ISA",
        )  # fmt: skip
    elif kernels.sets[0] == "generic":
        yield Finding(
            "kernels", "WARN",
            say(
                "this CPU shows none of the vector instructions that the native kernels have forms "
                "for"
            ),
            say(
                "In a virtual machine pass the host's CPU through (QEMU: -cpu host); else any CPU "
                "with AVX2 (2013) or later is several times faster."
            ),
        )  # fmt: skip
    elif kernels.isa != kernels.sets[0]:
        text = say(
            "native, {isa}, as PAGODA_CPU_ISA says; the CPU could do {best}",
            isa=kernels.isa, best=kernels.sets[0],
        )  # fmt: skip
        yield Finding("kernels", "PASS", text)
    else:
        yield Finding("kernels", "PASS", say("native, {isa}", isa=kernels.isa))


def _memory(memory: Memory, software: Software) -> Iterator[Finding]:
    text = say(
        "{free} of {total} available",
        free=format_bytes(memory.available), total=format_bytes(memory.usable),
    )  # fmt: skip
    fix = say("{end}.", end=_END_OTHERS)
    if memory.limit is not None:
        fix = say("{end}, or raise the container's limit (docker run --memory).", end=_END_OTHERS)
    elif software.wsl:
        fix = say("{end}, or give WSL more (.wslconfig: memory=...).", end=_END_OTHERS)
    if memory.available < _LEAST_MEMORY:
        few = say("only {text}: too little for any model", text=text)
        yield Finding("memory", "FAIL", few, fix)
    elif memory.available < _LITTLE_MEMORY:
        small = say("only {text}: enough for models below a billion parameters", text=text)
        yield Finding("memory", "WARN", small, fix)
    else:
        yield Finding("memory", "PASS", text)


def _swap(memory: Memory) -> Iterator[Finding]:
    used = say(
        "{used} of {total} swap in use",
        used=format_bytes(memory.swap_used), total=format_bytes(memory.swap_total),
    )  # fmt: skip
    if memory.pressure is not None and memory.pressure >= _THRASHING:
        yield Finding(
            "swap", "WARN",
            say(
                "everything waits for memory {share:.0%} of the time; {used}",
                share=memory.pressure, used=used,
            ),
            say("{end}, or serve a smaller model.", end=_END_OTHERS),
        )  # fmt: skip
    elif memory.swap_total and memory.swap_used >= _MUCH_SWAPPED * memory.swap_total:
        yield Finding(
            "swap", "WARN",
            say(
                "{used}: weights that are swapped out come back from disk for every token",
                used=used,
            ),
            say(
                "{end}; then `sudo swapoff -a && sudo swapon -a` brings back what was swapped out.",
                end=_END_OTHERS,
            ),
        )  # fmt: skip
    elif memory.swap_total:
        yield Finding("swap", "PASS", used)
    else:
        yield Finding("swap", "PASS", say("no swap; models do not need any"))


def _oom(memory: Memory) -> Iterator[Finding]:
    if memory.oom_kills_inside:
        yield Finding(
            "oom", "WARN",
            say(
                "the kernel ended {count} process of this container for lack of memory"
                if memory.oom_kills_inside == 1
                else "the kernel ended {count} processes of this container for lack of memory",
                count=memory.oom_kills_inside,
            ),
            say(
                "Raise its limit (docker run --memory) or serve a smaller model; {command} names "
                "them.",
                command=_NAMES_THEM,
            ),
        )  # fmt: skip
    elif memory.oom_kills:
        yield Finding(
            "oom", "WARN",
            say(
                "the kernel ended {count} process for lack of memory since this machine started"
                if memory.oom_kills == 1
                else "the kernel ended {count} processes for lack of memory since this machine "
                "started",
                count=memory.oom_kills,
            ),
            say(
                "If Pagoda was among them, lower --max-model-len or serve a smaller model; "
                "{command} names them.",
                command=_NAMES_THEM,
            ),
        )  # fmt: skip
    else:
        yield Finding("oom", "PASS", say("no process was ended for lack of memory"))


def _limits(memory: Memory, software: Software) -> Iterator[Finding]:
    if software.address_space is not None:
        yield Finding(
            "limits", "WARN",
            say(
                "a process may have {size} of addresses, and a mapped checkpoint counts in full",
                size=format_bytes(software.address_space),
            ),
            "ulimit -v unlimited",
        )  # fmt: skip
    if software.open_files is not None and software.open_files < _FEW_FILES:
        yield Finding(
            "limits", "WARN",
            say(
                "a process may open {count} files, and each connection takes one",
                count=software.open_files,
            ),
            say("Raise it: ulimit -Hn 65536 as root (docker run --ulimit nofile=65536)."),
        )  # fmt: skip
    if memory.commit_left is not None and memory.commit_left < memory.available:
        yield Finding(
            "limits", "WARN",
            say(
                "the kernel counts reserved memory as used (vm.overcommit_memory=2) and grants "
                "{size} more, less than what is available",
                size=format_bytes(max(0, memory.commit_left)),
            ),
            "sudo sysctl vm.overcommit_memory=0",
        )  # fmt: skip


def _huge_pages(memory: Memory, kernels: Kernels) -> Iterator[Finding]:
    if memory.huge_pages == "never" and kernels.isa is not None:
        yield Finding(
            "pages", "WARN",
            say(
                "transparent huge pages are off, and the native kernels read weights faster from "
                "them"
            ),
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )  # fmt: skip


def _disk(machine: Machine) -> Iterator[Finding]:
    disk = machine.disk
    free = ""
    if disk.free is not None:
        free = say("{size} free in {folder}", size=format_bytes(disk.free), folder=disk.folder)
    if disk.free is not None and disk.free < _LITTLE_DISK:
        yield Finding(
            "disk", "WARN", free,
            say(
                "`pagoda rm MODEL` makes room (`pagoda list` shows sizes), or keep models "
                "elsewhere: PAGODA_CACHE=FOLDER"
            ),
        )  # fmt: skip
    elif disk.free is not None:
        yield Finding("disk", "PASS", free)
    if disk.read_speed is None:
        return
    speed = say("reads {speed} (estimate)", speed=_speed(disk.read_speed))
    if disk.read_speed >= _SLOW_DISK:
        yield Finding("disk", "PASS", speed)
        return
    slow = say("Keep models on an SSD of this machine: PAGODA_CACHE=FOLDER")
    if machine.software.wsl:
        slow = say("Keep models within Linux, not under /mnt/c: PAGODA_CACHE=~/.cache/pagoda")
    text = say(
        "{speed}: a model of 5 GiB takes {seconds}",
        speed=speed, seconds=format_seconds(5 * _GIB / disk.read_speed),
    )  # fmt: skip
    yield Finding("disk", "WARN", text, slow)


def _speed(speed: float) -> str:
    return f"{speed / 1e9:.1f} GB/s" if speed >= 1e9 else f"{speed / 1e6:.0f} MB/s"
