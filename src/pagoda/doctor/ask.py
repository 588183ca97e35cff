"""From a question on the command line to answers: hardware, headers, speeds, plans."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pagoda.base.errors import ConfigError, PagodaError
from pagoda.config.engine import EngineConfig
from pagoda.doctor.answer import Answer, answer, with_speed
from pagoda.doctor.findings import Finding
from pagoda.doctor.guesses import drafting, with_guesses
from pagoda.doctor.machine.checks import checkpoint_findings
from pagoda.doctor.machine.hardware import Hardware, elsewhere, this_machine
from pagoda.doctor.machine.load import load_findings
from pagoda.doctor.machine.measure import Measuring
from pagoda.doctor.machine.probe import Machine, probe
from pagoda.doctor.speeds import draft_model_held, held_by
from pagoda.doctor.streaming import streaming_findings
from pagoda.doctor.subject import Subject, find_subject, with_draft_model
from pagoda.doctor.users import Users, parse_users
from pagoda.planner.devices.speed import DeviceSpeed


@dataclass(frozen=True)
class Question:
    config: EngineConfig
    elsewhere: Hardware | None
    """GPUs that are not here; None for this machine."""
    users: Users | None

    @classmethod
    def of(cls, config: EngineConfig, args: argparse.Namespace) -> "Question":
        """Raises ConfigError for flags that cannot be read."""
        users = None if args.users is None else parse_users(args.users)
        if args.gpu is not None and config.device.device == "cpu":
            raise ConfigError("--gpu and --device cpu contradict each other; leave one out.")
        wanted = config.nodes.share(config.parallel.num_devices)
        hardware = None if args.gpu is None else elsewhere(args.gpu, wanted)
        return cls(config, hardware, users)


def answers(
    question: Question,
    models: Sequence[str],
    measuring: Measuring | None,
    failures: dict[str, str] | None = None,
) -> list[Answer]:
    """One for each model, all on the same hardware; `measuring` is asked for its speed. What is
    wrong with a model goes into `failures`, if given, as long as there is an answer to another."""
    kept = _Kept(failures)
    try:
        subjects = kept.of(
            models,
            lambda model: with_draft_model(
                find_subject(replace(question.config.model, model=model)), question.config
            ),
        )
        machine, hardware = None, question.elsewhere
        if hardware is None:
            machine = probe(subjects[0].file)
            hardware = this_machine(machine, question.config.device.device)
        planned = kept.of(
            subjects,
            lambda subject: answer(
                subject, hardware, _named(question.config, subject), question.users
            ),
            name=lambda subject: subject.ref,
        )
        disk_speed = None if machine is None else machine.disk.read_speed
        speed = measured_speed(planned, hardware, measuring, disk_speed)
    finally:
        if measuring is not None:
            measuring.close()
    planned = [with_guesses(with_speed(made, speed), speed) for made in planned]
    if speed is not None and measuring is not None:
        busy = load_findings(measuring.others)
        planned = [replace(made, findings=(*made.findings, *busy)) for made in planned]
    return [
        replace(
            made,
            findings=(
                *made.findings,
                *streaming_findings(made, disk_speed),
                *_loading(made, machine),
            ),
        )
        for made in planned
    ]


T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class _Kept:
    """What goes well of several; the last failure is raised where nothing does."""

    failures: dict[str, str] | None

    def of(
        self,
        items: Sequence[T],
        make: Callable[[T], R],
        name: Callable[[T], str] = str,
    ) -> list[R]:
        made = []
        for item in items:
            try:
                made.append(make(item))
            except PagodaError as error:
                if self.failures is None or (item is items[-1] and not made):
                    raise
                self.failures[name(item)] = str(error)
        return made


def _loading(made: Answer, machine: Machine | None) -> tuple[Finding, ...]:
    """What reading the file takes; on a CPU the plan has said whether it fits."""
    if machine is None or not made.subject.file_bytes:
        return ()
    found = checkpoint_findings(machine, made.subject.file_bytes)
    on_cpu = made.hardware.facts.device == "cpu"
    return tuple(finding for finding in found if finding.topic == "load" or not on_cpu)


def _named(config: EngineConfig, subject: Subject) -> EngineConfig:
    return replace(config, model=replace(config.model, model=subject.ref))


def measured_speed(
    planned: Sequence[Answer],
    hardware: Hardware,
    measuring: Measuring | None,
    disk_speed: float | None,
) -> DeviceSpeed | None:
    """The speed of a CPU, for all formats that the plans hold weights in, with its disk's."""
    if measuring is None or hardware.facts.device != "cpu":
        return None
    storages: set[str] = set()
    for made in planned:
        if made.resolution is not None:
            held = held_by(drafting(made.subject), made.resolution, hardware)
            held += draft_model_held(made.subject, made.resolution, hardware)
            storages |= {part.storage for part in held if part.tensor.is_matrix}
    found = measuring.ask(sorted(storages)) if storages else None
    return None if found is None else replace(found, disk=disk_speed)
