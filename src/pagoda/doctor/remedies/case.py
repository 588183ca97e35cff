"""What a remedy is planned with: a model, hardware, flags, and how large the KV cache is then."""

from dataclasses import dataclass, replace

from pagoda.base.errors import CapacityError, ConfigError
from pagoda.config.engine import EngineConfig
from pagoda.doctor.answer import Answer, answer
from pagoda.doctor.machine.hardware import Hardware
from pagoda.doctor.streaming import streams
from pagoda.doctor.subject import Subject
from pagoda.doctor.users import Users
from pagoda.planner.devices.addresses import needed_addresses
from pagoda.planner.memory.plan import MemoryPlan
from pagoda.planner.memory.pool import room_for_pool

MIB = 1 << 20
SHORTEST = 512
"""Tokens; who is offered less than a page has nothing to say to the model."""
_ENDLESS = 1 << 60


@dataclass(frozen=True)
class Case:
    """What is planned: a model on hardware with flags."""

    subject: Subject
    hardware: Hardware
    config: EngineConfig
    own_pool: bool = False
    """The KV cache is given a size, so that no reserve and no share of the memory bounds it."""


def planned(case: Case, users: Users | None) -> Answer | None:
    """None for flags that contradict each other, the model or the hardware. Experts that would be
    read from disk do not fit: a remedy has all in memory."""
    config = _with_own_pool(case, users) if case.own_pool else case.config
    if config is None:
        return None
    try:
        made = answer(case.subject, case.hardware, config, users=users)
    except (CapacityError, ConfigError):
        return None
    return replace(made, resolution=None) if streams(made) else made


def least_bytes(case: Case) -> int | None:
    """Bytes that one device needs, with the least cache that serves; None as of `planned`."""
    made = _endless(case, None)
    if made is None or made.resolution is None:
        return None
    plan = made.resolution.plan
    pool = plan.slabs_for(1) * plan.slab_bytes if plan.groups else 0
    return plan.weights + plan.beside_weights + pool


def _endless(case: Case, users: Users | None) -> Answer | None:
    """Where neither memory nor addresses end."""
    facts = replace(case.hardware.facts, total_memory=_ENDLESS, free_memory=_ENDLESS)
    hardware = replace(case.hardware, facts=facts, address_space=None)
    return planned(replace(case, hardware=hardware, own_pool=False), users)


def _with_own_pool(case: Case, users: Users | None) -> EngineConfig | None:
    """With a KV cache of what is free beside weights and steps; None where that is too little."""
    cache = replace(case.config.cache, kv_cache_memory_bytes=None, num_gpu_blocks_override=None)
    made = _endless(replace(case, config=replace(case.config, cache=cache)), users)
    if made is None or made.resolution is None or not made.resolution.plan.groups:
        return None
    config, plan = made.resolution.config, made.resolution.plan
    room, wanted = _room(case, made, plan), made.config.model.max_model_len
    most = case.subject.spec.max_position
    length = wanted if isinstance(wanted, int) else plan.longest_within(room, most)
    if length < min(SHORTEST, most):
        return None
    useful = plan.slabs_for(length, config.scheduler.max_num_seqs) * plan.slab_bytes
    left = room - plan.position_bytes * length
    pool = min(left // MIB, -(-useful // MIB)) * MIB
    if pool <= 0:
        return None
    return replace(case.config, cache=replace(cache, kv_cache_memory_bytes=pool))


def _room(case: Case, made: Answer, plan: MemoryPlan) -> int:
    """Bytes for the pool and what grows with the context."""
    facts, bare = case.hardware.facts, replace(plan, num_slabs=0, max_model_len=0)
    if facts.device == "cpu":
        share = facts.free_memory // made.config.nodes.share(made.config.parallel.num_ranks)
        facts = replace(facts, free_memory=share)
    room = room_for_pool(bare, facts)
    space = case.hardware.address_space
    if space is not None:
        room = min(room, space - needed_addresses(bare, case.subject.file_bytes))
    return room
