"""The plan of one engine, beside the others of its server."""

from dataclasses import replace

from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import CapacityError
from pagoda.base.facts import DeviceFacts
from pagoda.base.log import get_logger
from pagoda.base.machine import address_limit
from pagoda.base.units import format_bytes
from pagoda.config.engine import EngineConfig
from pagoda.engine.processes.transport import MemoryRoom
from pagoda.engine.start.draft_model import FoundDraft
from pagoda.engine.start.model_files import mapped_bytes, planned_tensors
from pagoda.planner.devices.addresses import check_addresses
from pagoda.planner.draft_model import DraftModel
from pagoda.planner.memory.pool import CPU_RESERVE
from pagoda.planner.resolve import Resolution, resolve
from pagoda.weights.files import ModelFiles

log = get_logger(__name__)

# A chat template and a question take as many tokens.
_SHORT = 512


def plan_engine(
    config: EngineConfig,
    files: ModelFiles,
    spec: ModelSpec,
    facts: DeviceFacts,
    room: MemoryRoom | None,
    draft: FoundDraft | None = None,
) -> Resolution:
    """`config` resolved for this model, and the one that drafts for it, on a device with these
    facts, of which `room` is left.

    Raises as `resolve`, and CapacityError for what the others leave too little.
    """
    if room is not None:
        facts = _left_by_others(facts, room)
    drafting = None if draft is None else draft.model
    resolution = _resolve(config, files, spec, facts, room, drafting)
    if facts.device == "cpu":
        mapped = mapped_bytes(files, config.model)
        if draft is not None:
            mapped += mapped_bytes(draft.files, config.model)
        check_addresses(resolution.plan, mapped, address_limit())
    if room is not None:
        _check_room(config, room, resolution, min(room.least_context, spec.max_position))
    return resolution


def _resolve(
    config: EngineConfig,
    files: ModelFiles,
    spec: ModelSpec,
    facts: DeviceFacts,
    room: MemoryRoom | None,
    draft: DraftModel | None,
) -> Resolution:
    wanted = config.model.max_model_len
    beyond = isinstance(wanted, int) and wanted > spec.max_position
    if room is not None and beyond and spec.encoder is not None:
        # A flag that was meant for another model of the server.
        config = replace(config, model=replace(config.model, max_model_len=None))
    try:
        tensors = planned_tensors(files, spec, config.model)
        resolution = resolve(config, spec, tensors, facts, draft)
    except CapacityError as error:
        if room is None or room.limit is None:
            raise
        raise CapacityError(f"{error} --models-memory limits it.") from error
    length = resolution.config.model.max_model_len
    if length > spec.max_position:
        log.warning(
            "--max-model-len %s is beyond the %s tokens that the model was trained for.",
            f"{length:,}", f"{spec.max_position:,}",
        )  # fmt: skip
    elif length < min(_SHORT, spec.max_position) and not isinstance(wanted, int):
        log.warning(
            "Prompt and reply have %s tokens together: no more fit in memory. `pagoda doctor "
            "MODEL`, with the same flags, says what to change.", f"{length:,}",
        )  # fmt: skip
    return resolution


def _check_room(
    config: EngineConfig, room: MemoryRoom, resolution: Resolution, least_context: int
) -> None:
    """CapacityError for a model that the others leave too little."""
    needed, length = resolution.plan.total, resolution.config.model.max_model_len
    if room.limit is not None and needed > room.limit:
        raise CapacityError(
            f"It needs {format_bytes(needed)} and {format_bytes(room.limit)} are left."
        )
    if room.least_context and resolution.plan.on_disk:
        raise CapacityError("Its experts would have to be read from disk.")
    if config.model.max_model_len is None and length < least_context:
        raise CapacityError(f"Only {length:,} tokens of context would fit.")


def _left_by_others(facts: DeviceFacts, room: MemoryRoom) -> DeviceFacts:
    free = max(0, facts.free_memory - room.reserved)
    if room.cpu_part is not None and facts.device == "cpu":
        free = min(free, room.cpu_part)
    if room.limit is not None:
        # The planner keeps a reserve of what is free, and a limit is not to be cut by that.
        free = min(free, room.limit + (CPU_RESERVE if facts.device == "cpu" else 0))
    return replace(facts, free_memory=free)
