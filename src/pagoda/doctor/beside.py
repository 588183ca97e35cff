"""Plans for a server that runs: each in a process of its own, which reads headers that others
wrote, waits for hubs, measures the CPU, and can be ended at any moment."""

import asyncio
import contextlib
import sys
from dataclasses import replace

import msgspec

from pagoda.base.errors import PagodaError
from pagoda.doctor.answer import Answer, answer, with_speed
from pagoda.doctor.ask import measured_speed
from pagoda.doctor.machine.hardware import Hardware, this_machine
from pagoda.doctor.machine.measure import Measuring
from pagoda.doctor.machine.probe import probe
from pagoda.doctor.streaming import streams
from pagoda.doctor.subject import find_subject, names, with_draft_model
from pagoda.planner.planned import Advice, PlannedModel, PlanQuestion, Verdict

PLAN_SECONDS = 60.0
"""A hub that has not given the headers by then is given up."""


def advice() -> Advice:
    return Advice(plan_beside, names)


async def plan_beside(question: PlanQuestion) -> PlannedModel:
    """What `planned` says, from another process; `unknown` where that fails or takes too long."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pagoda.doctor.beside",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PLAN_SECONDS):
            out, _ = await process.communicate(msgspec.json.encode(question))
        return msgspec.json.decode(out, type=PlannedModel)
    except TimeoutError:
        return PlannedModel(
            "unknown",
            f"Its headers could not be read within {PLAN_SECONDS:.0f} s. Ask again, or run "
            f"`pagoda doctor {question.config.model.model}` on the server's machine.",
        )
    except msgspec.MsgspecError:
        return PlannedModel(
            "unknown",
            f"Planning failed; `pagoda doctor {question.config.model.model}` on the server's "
            "machine says why.",
        )
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def planned(question: PlanQuestion) -> PlannedModel:
    """The model beside what runs here now, and where it does not fit, after others have left."""
    config = question.config
    measuring = Measuring()
    try:
        subject = with_draft_model(find_subject(config.model), config)
        machine = probe(subject.file)
        hardware = this_machine(machine, config.device.device)
        made = answer(subject, hardware, config)
        verdict: Verdict = "fits" if made.fits else "too_large"
        if not made.fits or streams(made):
            roomier = answer(subject, _with_room(hardware, question.freed), config)
            if roomier.fits and (not made.fits or not streams(roomier)):
                verdict, made = "fits_after_unloading", roomier
        speed = measured_speed([made], hardware, measuring, machine.disk.read_speed)
        made = with_speed(made, speed)
    except PagodaError as error:
        return PlannedModel("unknown", str(error))
    finally:
        measuring.close()
    return _in_short(made, verdict, measuring.others)


def _with_room(hardware: Hardware, freed: int) -> Hardware:
    facts = hardware.facts
    free = min(facts.total_memory, facts.free_memory + freed)
    return replace(hardware, facts=replace(facts, free_memory=free))


def _in_short(made: Answer, verdict: Verdict, others: float) -> PlannedModel:
    spec, resolution, speeds = made.subject.spec, made.resolution, made.speeds
    found = PlannedModel(
        verdict, str(made.problem), file_bytes=made.subject.file_bytes, writes=spec.writes_text
    )
    if resolution is not None:
        plan = resolution.plan
        found = msgspec.structs.replace(found, memory=plan.total, context=plan.max_model_len)
    if speeds is not None:
        slowest, fastest = speeds.one.decode_range
        found = msgspec.structs.replace(
            found,
            tokens_per_second=speeds.one.decode,
            slowest=slowest,
            fastest=fastest,
            disturbed=others,
        )
    return found


def main() -> None:
    """Answer one question on stdin."""
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=PlanQuestion)
    sys.stdout.buffer.write(msgspec.json.encode(planned(question)))


if __name__ == "__main__":
    main()
