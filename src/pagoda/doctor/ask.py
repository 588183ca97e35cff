"""From a question on the command line to answers: hardware, headers, speeds, plans."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagoda.base.errors import ConfigError
from pagoda.config.engine import EngineConfig
from pagoda.doctor.answer import Answer, answer, held_by
from pagoda.doctor.checks import checkpoint_findings
from pagoda.doctor.findings import Finding
from pagoda.doctor.hardware import Hardware, elsewhere, this_machine
from pagoda.doctor.measure import Measuring
from pagoda.doctor.probe import Machine, probe
from pagoda.doctor.subject import Subject, find_subject
from pagoda.doctor.users import Users, parse_users
from pagoda.planner.speed import DeviceSpeed, gpu_speed


@dataclass(frozen=True)
class Question:
    config: EngineConfig
    elsewhere: Hardware | None
    """GPUs that are not here; None for this machine."""
    users: Users | None
    mode: str = "auto"
    """How many tokens to draft: `planner.speculation`."""

    @classmethod
    def of(cls, config: EngineConfig, args: argparse.Namespace) -> "Question":
        """Raises ConfigError for flags that cannot be read."""
        users = None if args.users is None else parse_users(args.users)
        if args.gpu is not None and config.device.device == "cpu":
            raise ConfigError("--gpu and --device cpu contradict each other; leave one out.")
        return cls(
            config,
            None if args.gpu is None else elsewhere(args.gpu),
            users,
            getattr(args, "mode", None) or "auto",
        )

    def put(
        self,
        subject: Subject,
        hardware: Hardware,
        config: EngineConfig,
        speed: DeviceSpeed | None,
    ) -> Answer:
        return answer(subject, hardware, config, speed, self.users, self.mode)


def answers(question: Question, models: Sequence[str], measuring: Measuring | None) -> list[Answer]:
    """One for each model, all on the same hardware; `measuring` is asked for its speed."""
    try:
        subjects = [find_subject(replace(question.config.model, model=model)) for model in models]
        machine, hardware = None, question.elsewhere
        if hardware is None:
            machine = probe(subjects[0].file)
            hardware = this_machine(machine, question.config.device.device)
        planned = [
            question.put(subject, hardware, _named(question.config, subject), None)
            for subject in subjects
        ]
        speed = _speed(planned, hardware, measuring)
    finally:
        if measuring is not None:
            measuring.close()
    if speed is not None:
        planned = [question.put(made.subject, hardware, made.asked, speed) for made in planned]
    return [replace(made, findings=_loading(made, machine)) for made in planned]


def _loading(made: Answer, machine: Machine | None) -> tuple[Finding, ...]:
    """What reading the file takes; on a CPU the plan has said whether it fits."""
    if machine is None or not made.subject.file_bytes:
        return ()
    found = checkpoint_findings(machine, made.subject.file_bytes)
    on_cpu = made.hardware.facts.device == "cpu"
    return tuple(finding for finding in found if finding.topic == "load" or not on_cpu)


def _named(config: EngineConfig, subject: Subject) -> EngineConfig:
    return replace(config, model=replace(config.model, model=subject.ref))


def _speed(
    planned: Sequence[Answer], hardware: Hardware, measuring: Measuring | None
) -> DeviceSpeed | None:
    """Of the hardware, for all formats that the plans hold weights in."""
    if hardware.gpu is not None:
        return gpu_speed(hardware.gpu.bandwidth, hardware.gpu.matmul)
    if measuring is None or hardware.facts.device != "cpu":
        return None
    storages: set[str] = set()
    largest = 0
    for made in planned:
        if made.resolution is not None:
            held = held_by(made.subject, made.resolution, hardware)
            storages |= {part.storage for part in held if part.tensor.is_matrix}
            largest = max(largest, made.resolution.plan.weights)
    return measuring.ask(largest, sorted(storages)) if storages else None
