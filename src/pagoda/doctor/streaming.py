"""What the doctor says of a mixture whose experts are read from disk."""

from pagoda.base.disk import free_bytes
from pagoda.base.units import format_bytes
from pagoda.base.words import say
from pagoda.doctor.answer import Answer
from pagoda.doctor.findings import Finding
from pagoda.planner.memory.streaming import speed_in_words
from pagoda.weights.expert_files import expert_files_dir


def streaming_findings(made: Answer, disk_speed: float | None) -> tuple[Finding, ...]:
    """How fast it can be, and whether there is room for the files; nothing where all experts are in
    memory. `disk_speed` is bytes per second."""
    if made.resolution is None or not streams(made):
        return ()
    plan = made.resolution.plan
    text = speed_in_words(plan, made.subject.spec, disk_speed)
    fix = say("More free memory, a version in fewer bits, or a faster disk makes it faster.")
    found = [Finding("disk", "WARN", text, fix)]
    folder = expert_files_dir()
    free = free_bytes(folder)
    if free is not None and free < plan.on_disk:
        text = say(
            "The first start writes {size} of experts to {folder}, whose disk has {free} free",
            size=format_bytes(plan.on_disk), folder=folder, free=format_bytes(free),
        )  # fmt: skip
        fix = say("Free some before it, or set PAGODA_CACHE to a folder of another disk.")
        found.append(Finding("disk", "WARN", text, fix))
    return tuple(found)


def streams(made: Answer) -> bool:
    """Whether experts are read from disk."""
    return made.resolution is not None and made.resolution.plan.on_disk > 0
