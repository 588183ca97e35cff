"""What may guess tokens ahead on some hardware: its memory and speed, the flag that asks for it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import CapacityError
from pagoda.base.words import Said, say
from pagoda.config.speculation import SpeculationConfig
from pagoda.core.kvcache.spec import kv_groups
from pagoda.doctor.answer import Answer, resolved
from pagoda.doctor.speeds import device_speeds, draft_model_held, held_by
from pagoda.doctor.subject import Subject, without_drafts
from pagoda.doctor.ways import Guesses, Way
from pagoda.planner.devices.guess_speed import MOST_COPIED, best_gain, gained
from pagoda.planner.devices.speed import DeviceSpeed, draft_seconds, estimate_speed
from pagoda.planner.draft_model import DraftModel
from pagoda.planner.parallel import rank_spec
from pagoda.planner.resolve import Resolution


def with_guesses(made: Answer, measured: DeviceSpeed | None = None) -> Answer:
    """With what may guess, where it fits and writes text; `measured` is the CPU's speed."""
    resolution, spec = made.resolution, made.subject.spec
    if resolution is None or not spec.writes_text or spec.encoder is not None:
        return made
    plain = _resolved(made, {"method": "none"})
    if not isinstance(plain, Resolution):
        return made
    method = resolution.config.speculation.method
    why = next((r.why for r in resolution.reasons if r.field == "speculation"), say("as you ask"))
    ways = tuple(_ways(made, resolution, plain, measured))
    return replace(made, guesses=Guesses(method, why, ways))


def _ways(
    made: Answer, resolution: Resolution, plain: Resolution, measured: DeviceSpeed | None
) -> Iterator[Way]:
    method, most = resolution.config.speculation.method, resolution.config.speculation.most
    timed = partial(_timed, made, plain, measured)
    if method != "none":
        yield timed(_way(method, "", resolution, plain), resolution)
    others: list[tuple[str, str, dict[str, object]]] = []
    if without_drafts(made.subject).spec.draft_head is not None:
        others += [("mtp", f"--mode {mode}", {"mode": mode}) for mode in ("fast", "stable")]
    others.append(("suffix", "--spec-method suffix", {"method": "suffix"}))
    for wanted, flags, changes in others:
        other = _resolved(made, changes)
        if not isinstance(other, Resolution):
            yield Way(wanted, flags, 0, problem=other)
            continue
        found = other.config.speculation
        if (found.method, found.most) == (method, most) or (wanted == method == "suffix"):
            continue
        if found.method != wanted:
            reasons = (reason.why for reason in other.reasons if reason.field == "speculation")
            why = next(reasons, "")
            # That of a method which stands in for the one that was asked for.
            problem = why.fields.get("why", "") if isinstance(why, Said) else ""
            yield Way(wanted, flags, 0, problem=problem)
            continue
        yield timed(_way(wanted, flags, other, plain), other)


def _resolved(made: Answer, speculation: Mapping[str, object]) -> Resolution | str:
    """Planned with other guesses than those that were named, or why that does not fit."""
    other = replace(made.config, speculation=SpeculationConfig(dict(speculation)))
    try:
        return resolved(other, without_drafts(made.subject), made.hardware)
    except CapacityError:
        return say("it does not fit beside the rest")


def _way(method: str, flags: str, resolution: Resolution, plain: Resolution) -> Way:
    def taken(planned: Resolution) -> int:
        plan, length = planned.plan, resolution.plan.max_model_len
        return plan.weights + plan.beside_weights + plan.slabs_for(length) * plan.slab_bytes

    memory = max(0, taken(resolution) - taken(plain))
    return Way(method, flags, resolution.config.speculation.most, memory)


def _timed(
    made: Answer,
    plain: Resolution,
    measured: DeviceSpeed | None,
    way: Way,
    resolution: Resolution,
) -> Way:
    """With what it gains; a head's and a draft model's own time is counted."""
    draft: Callable[[DeviceSpeed], float | None] = _nothing
    if way.method in ("mtp", "eagle3"):
        subject = drafting(made.subject)
        held = held_by(subject, resolution, made.hardware)
        draft = partial(draft_seconds, _own(subject, resolution), held)
    elif made.subject.draft is not None and not way.copies:
        draft = partial(_model_seconds, made, resolution, made.subject.draft)
    return _with_gains(made, plain, measured, way, draft)


def _with_gains(
    made: Answer,
    plain: Resolution,
    measured: DeviceSpeed | None,
    way: Way,
    draft: Callable[[DeviceSpeed], float | None],
) -> Way:
    speeds, subject = made.speeds, without_drafts(made.subject)
    devices = device_speeds(subject, plain, made.hardware, measured)
    if speeds is None or not devices:
        return way
    own, held = _own(subject, plain), held_by(subject, plain, made.hardware)
    most = min(way.most, MOST_COPIED) if way.copies else way.most
    gains = []
    for device in devices:
        drafting = draft(device)
        if drafting is None:
            return way

        def seconds(rows: int, device: DeviceSpeed = device) -> float:
            found = estimate_speed(
                own, held, plain.plan.groups, device, speeds.context,
                plain.plan.placement.params, rows=rows,
            )  # fmt: skip
            assert found is not None  # as for the speeds without guesses
            return 1 / found.decode

        gains.append(best_gain(seconds, most, drafting))
    decode_range = gained(speeds.one.decode_range, gains)
    return replace(way, gains=tuple(gains), decode_range=decode_range)


def _model_seconds(
    made: Answer, resolution: Resolution, draft: DraftModel, device: DeviceSpeed
) -> float | None:
    """What a draft model takes for one token, behind the same context."""
    assert made.speeds is not None
    held = draft_model_held(made.subject, resolution, made.hardware)
    cached = resolution.config.cache.kv_cache_dtype
    groups = kv_groups(draft.spec, resolution.attention.layout, cached)
    found = estimate_speed(draft.spec, held, groups, device, made.speeds.context)
    return None if found is None else 1 / found.decode


def _nothing(device: DeviceSpeed) -> float:
    """What copying takes."""
    return 0.0


def drafting(subject: Subject) -> Subject:
    """With its draft head loaded, where it has one."""
    spec = subject.spec
    if spec.draft_head is None or spec.drafts:
        return subject
    return replace(subject, spec=spec.drafting())


def _own(subject: Subject, resolution: Resolution) -> ModelSpec:
    return rank_spec(subject.spec, resolution.config.parallel.tensor_parallel_size)
