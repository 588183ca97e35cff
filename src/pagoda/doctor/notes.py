"""What is to be said of a plan beside its numbers: what stays idle, what goes beyond the machine or
the model, what is not there yet."""

from collections.abc import Iterator

from pagoda.base.words import say, with_and
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
        *_nodes(config),
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
            text = say(
                "{count} processes share the cores and the memory of one machine", count=used
            )
            if engines > 1:
                text = say("{text}; each engine has its own copy of the weights", text=text)
            yield Finding("devices", "WARN", text, say("One process is faster."))
        return
    idle = hardware.count - used
    if idle <= 0:
        return
    text = say(
        "{idle} of {all} GPUs stays idle" if idle == 1 else "{idle} of {all} GPUs stay idle",
        idle=idle, all=hardware.count,
    )  # fmt: skip
    most = most_ranks(subject.spec, subject.rounded(config.model.quantization), hardware.count)
    if engines > 1 and idle >= used // engines:
        size = hardware.count // (used // engines)
        fix = say("--data-parallel-size {size} uses more of them.", size=size)
    elif engines > 1:
        fix = say("They are too few for another engine.")
    elif used < most and chosen:
        fix = say("More of them would be slower; further servers can have the others.")
    elif used < most:
        fix = say("--tensor-parallel-size {size} uses {size} of them.", size=most)
    else:
        fix = say("The model's heads and experts can be split over {most} at most.", most=used)
    yield Finding("devices", "WARN", text, fix)


def _nodes(config: EngineConfig) -> Iterator[Finding]:
    count = config.nodes.nnodes
    if count > 1:
        text = say("planned for {count} machines with this memory each", count=count)
        fix = say(
            "The device with the least memory decides for all of them: plan on that machine, or "
            "name its GPU with --gpu. Each machine also needs --node-rank and --master-addr."
        )
        yield Finding("nodes", "WARN", text, fix)


def _threads(hardware: Hardware, config: EngineConfig) -> Iterator[Finding]:
    threads, usable = config.device.threads, hardware.facts.most_threads
    if hardware.here and isinstance(threads, int) and threads > usable:
        text = say(
            "--threads {threads} on {usable} that may run at once: they wait for each other",
            threads=threads, usable=usable,
        )  # fmt: skip
        fix = say("Leave it out, or give at most {usable}.", usable=usable)
        yield Finding("threads", "WARN", text, fix)


def _length(subject: Subject, config: EngineConfig) -> Iterator[Finding]:
    length, trained = config.model.max_model_len, subject.spec.max_position
    if isinstance(length, int) and length > trained:
        text = say(
            "{length:,} tokens are beyond the {trained:,} that the model was trained for",
            length=length, trained=trained,
        )  # fmt: skip
        fix = say("Replies are sound up to {trained:,}.", trained=trained)
        yield Finding("context", "WARN", text, fix)


def _files(subject: Subject) -> Iterator[Finding]:
    if subject.missing:
        text = say("not here yet: {files}", files=with_and(subject.missing))
        fix = say("Fetch the model's other files before it is served.")
        yield Finding("files", "WARN", text, fix)
    if subject.unreached:
        text = say(
            "planned from the config.json that comes with Pagoda, for the hub was not reached"
        )
        yield Finding("files", "WARN", text, subject.unreached)
