"""What a model would take where memory does not end: for what is said of one that does not fit."""

from dataclasses import replace

from pagoda.base.errors import CapacityError, ConfigError
from pagoda.doctor.answer import Answer
from pagoda.planner.memory.plan import MemoryPlan
from pagoda.planner.memory.pool import usable_bytes
from pagoda.planner.resolve import resolve

_ENDLESS = 1 << 60


def needed(made: Answer) -> MemoryPlan | None:
    """With a pool for all users, or one request of the length that was asked for, or the least
    that serves; None where flags contradict each other."""
    subject, config, users = made.subject, made.config, made.users
    length = config.model.max_model_len
    tokens = length if isinstance(length, int) else 1
    config = replace(config, model=replace(config.model, max_model_len=tokens))
    facts = replace(made.hardware.facts, total_memory=_ENDLESS, free_memory=_ENDLESS)
    try:
        plan = resolve(config, subject.spec, subject.tensors, facts, subject.draft).plan
    except (CapacityError, ConfigError):
        return None
    if not plan.groups or config.cache.kv_cache_memory_bytes is not None:
        return plan
    count = 1 if users is None else users.users.count
    return replace(plan, num_slabs=(plan.slabs_for(tokens) - 1) * count + 1)


def usable(made: Answer) -> int:
    """Bytes of one device that the plan may take."""
    return max(0, usable_bytes(made.config, made.hardware.facts))
