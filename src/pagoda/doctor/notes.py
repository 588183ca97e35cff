"""What is to be said of a plan beside its numbers: what stays idle, what goes beyond the machine or
the model, what is not there yet."""

from collections.abc import Iterator

from pagoda.config.engine import EngineConfig
from pagoda.doctor.findings import Finding
from pagoda.doctor.machine.hardware import Hardware
from pagoda.doctor.subject import Subject
from pagoda.planner.parallel import most_ranks


def plan_notes(
    subject: Subject, hardware: Hardware, config: EngineConfig, *, chosen: bool = False
) -> tuple[Finding, ...]:
    """Findings about `config` on the hardware; `chosen`: how many devices is the doctor's
    choice."""
    return (
        *_devices(subject, hardware, config, chosen),
        *_threads(hardware, config),
        *_length(subject, config),
        *_files(subject),
    )


def _devices(
    subject: Subject, hardware: Hardware, config: EngineConfig, chosen: bool
) -> Iterator[Finding]:
    used = config.nodes.share(config.parallel.num_devices)
    engines = config.parallel.data_parallel_size
    if hardware.facts.device == "cpu":
        if used > 1:
            text = f"{used} processes share the cores and the memory of one machine"
            if engines > 1:
                text += "; each engine has its own copy of the weights"
            yield Finding("devices", "WARN", text, "One process is faster.")
        return
    idle = hardware.count - used
    if idle <= 0:
        return
    text = f"{idle} of {hardware.count} GPUs stay{'s' * (idle == 1)} idle"
    most = most_ranks(subject.spec, subject.rounded(config.model.quantization), hardware.count)
    if engines > 1 and idle >= used // engines:
        fix = f"--data-parallel-size {hardware.count // (used // engines)} uses more of them."
    elif engines > 1:
        fix = "They are too few for another engine."
    elif used < most and chosen:
        fix = "More of them would be slower; further servers can have the others."
    elif used < most:
        fix = f"--tensor-parallel-size {most} uses {most} of them."
    else:
        fix = f"The model's heads and experts can be split over {used} at most."
    yield Finding("devices", "WARN", text, fix)


def _threads(hardware: Hardware, config: EngineConfig) -> Iterator[Finding]:
    threads, usable = config.device.threads, hardware.facts.most_threads
    if hardware.here and isinstance(threads, int) and threads > usable:
        text = f"--threads {threads} on {usable} that may run at once: they wait for each other"
        yield Finding("threads", "WARN", text, f"Leave it out, or give at most {usable}.")


def _length(subject: Subject, config: EngineConfig) -> Iterator[Finding]:
    length, trained = config.model.max_model_len, subject.spec.max_position
    if isinstance(length, int) and length > trained:
        text = f"{length:,} tokens are beyond the {trained:,} that the model was trained for"
        yield Finding("context", "WARN", text, f"Replies are sound up to {trained:,}.")


def _files(subject: Subject) -> Iterator[Finding]:
    if subject.missing:
        text = f"not here yet: {' and '.join(subject.missing)}"
        yield Finding("files", "WARN", text, "Fetch the model's other files before it is served.")
    if subject.unreached:
        text = "planned from the config.json that comes with Pagoda, for the hub was not reached"
        yield Finding("files", "WARN", text, subject.unreached)
