"""What the doctor says of a model on some hardware: whether it runs, what takes how much memory,
how many tokens fit, how fast it will be, and with which flags."""

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any

from pagoda.base.errors import CapacityError, ConfigError
from pagoda.config.engine import EngineConfig
from pagoda.doctor.command import differences, fields_of, serve_command
from pagoda.doctor.findings import Finding
from pagoda.doctor.machine.hardware import Hardware
from pagoda.doctor.notes import plan_notes
from pagoda.doctor.remedies.condensed import condensed
from pagoda.doctor.speeds import Speeds, speeds_of
from pagoda.doctor.subject import Subject, with_eagle3_head
from pagoda.doctor.users import Users
from pagoda.doctor.ways import Guesses
from pagoda.planner.devices.addresses import check_addresses
from pagoda.planner.devices.speed import DeviceSpeed
from pagoda.planner.memory.pool import cache_is_chosen
from pagoda.planner.parallel import can_split, machine_part, replica_part
from pagoda.planner.reason import Reason
from pagoda.planner.resolve import Resolution, resolve

# Of the context behind which decoding is foretold, where nothing says how long it will be.
_USUAL_CONTEXT = 1024


@dataclass(frozen=True)
class Flag:
    """One flag of `pagoda serve`, as it will be."""

    name: str
    value: Any
    why: str
    asked: bool
    """The user set it."""


@dataclass(frozen=True)
class UsersAnswer:
    """So many users with so long contexts, against what fits."""

    users: Users
    fits: bool
    needed: int
    """Bytes of KV cache for all of them at once."""
    most_users: int
    """How many users of that length fit; 0 where the model alone does not fit."""
    longest: int
    """Tokens for each of that many."""

    def of_all(self, users: Users, engines: int) -> "UsersAnswer":
        """That of several engines, where this is that of one."""
        needed, most = self.needed * engines, self.most_users * engines
        return replace(self, users=users, needed=needed, most_users=most)


@dataclass(frozen=True)
class Answer:
    subject: Subject
    hardware: Hardware
    asked: EngineConfig
    """As the flags say."""
    config: EngineConfig
    """With what the doctor chose before anything else: devices, room for users."""
    choices: tuple[Reason, ...]
    """What the doctor chose before anything else."""
    resolution: Resolution | None
    """None where it does not fit."""
    problem: str = ""
    """Why it does not fit."""
    speeds: Speeds | None = None
    users: UsersAnswer | None = None
    guesses: Guesses | None = None
    """None where it does not fit or writes no text."""
    findings: tuple[Finding, ...] = ()
    """What is to be known besides, and what loading it will be like here."""
    serving: str = ""
    """What the command says besides: flags of the HTTP server, ready for a shell."""

    @property
    def fits(self) -> bool:
        return self.resolution is not None and (self.users is None or self.users.fits)

    @property
    def command(self) -> str:
        """`pagoda serve` with what was asked for and what the doctor chose."""
        typed = replace(self.config, device=self.asked.device)
        return serve_command(self.subject.ref, typed, self.serving)

    def reasons(self) -> list[Reason]:
        """The chain from facts to values, in order."""
        return [*self.choices, *(self.resolution.reasons if self.resolution else ())]

    def flags(self) -> list[Flag]:
        """Every value that was asked for or chosen."""
        if self.resolution is None:
            return []
        values = {**fields_of(self.config), **fields_of(self.resolution.config)}
        asked = differences(self.asked)
        flags = [Flag(name, values[name], "as you ask", True) for name in asked]
        chosen: dict[str, Reason] = {}
        for reason in self.reasons():
            if reason.field in values and reason.field not in asked:
                chosen.setdefault(reason.field, reason)
        return flags + [Flag(name, found.value, found.why, False) for name, found in chosen.items()]


def answer(
    subject: Subject,
    hardware: Hardware,
    asked: EngineConfig,
    users: Users | None = None,
) -> Answer:
    """Plan for the hardware. Raises ConfigError for flags that contradict each other, the model or
    the hardware."""
    subject = with_eagle3_head(subject, asked)
    if subject.spec.drafts:  # a head drafts on one device
        return _answer_on(subject, hardware, asked, users)
    devices = _devices_wanted(asked, hardware)
    one = hardware.count == 1 or subject.draft is not None
    if devices > 1 or one or hardware.facts.device == "cpu":
        return _answer_on(subject, hardware, asked, users)
    why = f"of {hardware.count} devices; the fastest that has room for the context"
    quick = condensed(subject)
    tensors = quick.rounded(asked.model.quantization)
    sizes = [size for size in range(1, hardware.count + 1) if can_split(quick.spec, tensors, size)]
    best = max(
        sizes if hardware.gpu is not None else sizes[-1:],
        key=lambda size: _room_and_speed(
            _answer_on(quick, hardware, _split_over(asked, size), users)
        ),
    )
    reason = Reason("tensor_parallel_size", best, why)
    made = _answer_on(subject, hardware, _split_over(asked, best), users, reason)
    return replace(made, asked=asked)


def _split_over(asked: EngineConfig, size: int) -> EngineConfig:
    return replace(asked, parallel=replace(asked.parallel, tensor_parallel_size=size))


def _room_and_speed(made: Answer) -> tuple[bool, int, float, int]:
    """What fits first, then whole contexts, then speed; of equals the most devices where nothing
    fits, else the fewest."""
    size = made.config.parallel.tensor_parallel_size
    if made.resolution is None or not made.fits:
        return False, 0, 0.0, size
    speeds = _speeds(made, made.resolution, None)
    speed = None if speeds is None else speeds.together or speeds.one
    return True, made.resolution.plan.max_model_len, speed.decode if speed else 0.0, -size


def _answer_on(
    subject: Subject,
    hardware: Hardware,
    asked: EngineConfig,
    users: Users | None,
    chosen: Reason | None = None,
) -> Answer:
    """`chosen`: how many devices, where no flag says it."""
    choices = [] if chosen is None else [chosen]
    config = replace(asked, device=replace(asked.device, device=hardware.facts.device))
    found = None
    if users is not None:
        engines = config.parallel.data_parallel_size
        part = replace(users, count=-(-users.count // engines))
        config = _for_users(config, part, choices)
        found = _users_answer(config, subject, hardware, part)
        config = _with_room(config, subject, hardware, found, choices)
        found = found.of_all(users, engines)
    notes = plan_notes(subject, hardware, config, chosen=chosen is not None)
    made = Answer(
        subject, hardware, asked, config, tuple(choices), None, users=found, findings=notes
    )
    try:
        resolution = resolved(config, subject, hardware)
        check_addresses(resolution.plan, subject.file_bytes, hardware.address_space)
    except CapacityError as error:
        return replace(made, problem=str(error))
    return replace(made, resolution=resolution)


def resolved(config: EngineConfig, subject: Subject, hardware: Hardware) -> Resolution:
    """The plan of one device, or of one of the processes (ranks, replicas) that share a CPU."""
    config, facts = replica_part(config, hardware.facts)
    if facts.device == "cpu":
        config, facts = machine_part(config, facts, config.nodes.share(config.parallel.num_ranks))
    return resolve(config, subject.spec, subject.tensors, facts, subject.draft)


def with_speed(made: Answer, measured: DeviceSpeed | None = None) -> Answer:
    """With how fast it decodes and reads prompts, where it fits and writes text; a CPU as it was
    measured."""
    resolution = made.resolution
    if resolution is None:
        return made
    return replace(made, speeds=_speeds(made, resolution, measured))


def _speeds(made: Answer, resolution: Resolution, measured: DeviceSpeed | None) -> Speeds | None:
    asked, users = made.asked.model.max_model_len, made.users
    context = asked if isinstance(asked, int) else _USUAL_CONTEXT
    context = context if users is None else users.users.tokens
    context = min(resolution.plan.max_model_len, context)
    engines = made.config.parallel.data_parallel_size
    count = 1 if users is None else -(-users.users.count // engines)
    return speeds_of(made.subject, resolution, made.hardware, measured, context, count)


def _devices_wanted(config: EngineConfig, hardware: Hardware) -> int:
    """As many as the flags say; ConfigError for more than there are."""
    parallel = config.parallel
    # Other machines are taken to be like this one.
    wanted = config.nodes.share(parallel.num_devices)
    if wanted > hardware.count and hardware.facts.device != "cpu":
        name = hardware.facts.name if hardware.gpu is None else hardware.gpu.name
        where, fix = "are named by --gpu", f"write --gpu {name}x{wanted}, or lower it"
        if hardware.here:
            where, fix = "are here", f"lower it, or plan for --gpu {name}x{wanted}"
        engines = parallel.data_parallel_size
        times = f"--data-parallel-size {engines} times " if engines > 1 else ""
        shared = f" on each of {config.nodes.nnodes} machines" if config.nodes.nnodes > 1 else ""
        raise ConfigError(
            f"{times}--tensor-parallel-size {parallel.tensor_parallel_size} times "
            f"--pipeline-parallel-size {parallel.pipeline_parallel_size} is {wanted} devices"
            f"{shared}, and {hardware.count} {where}; {fix}."
        )
    return wanted


def _for_users(config: EngineConfig, users: Users, choices: list[Reason]) -> EngineConfig:
    """Room for all of them at once, where the flags leave it open."""
    model, scheduler = config.model, config.scheduler
    length = model.max_model_len
    if isinstance(length, int) and length < users.tokens:
        raise ConfigError(
            f"--for asks for {users.tokens:,} tokens each, and --max-model-len {length:,} allows "
            "less; raise it or leave it out."
        )
    if not isinstance(model.max_model_len, int):
        model = replace(model, max_model_len=users.tokens)
        choices.append(Reason("max_model_len", users.tokens, "what each user has"))
    if scheduler.max_num_seqs == "auto":
        scheduler = replace(scheduler, max_num_seqs=users.count)
        choices.append(Reason("max_num_seqs", users.count, "all users at once"))
    return replace(config, model=model, scheduler=scheduler)


def _users_answer(
    config: EngineConfig, subject: Subject, hardware: Hardware, users: Users
) -> UsersAnswer:
    # The longest context that fits alone leaves the memory that all of them share.
    alone = replace(config, model=replace(config.model, max_model_len="auto"))
    steps_fit = True
    try:
        resolution = resolved(alone, subject, hardware)
    except CapacityError:
        # A step for all of them may be what does not fit: some of them still do.
        steps_fit = False
        alone = replace(alone, scheduler=replace(alone.scheduler, max_num_seqs="auto"))
        try:
            resolution = resolved(alone, subject, hardware)
        except CapacityError:
            return UsersAnswer(users, False, 0, 0, 0)
    plan, room = resolution.plan, resolution.pool_limit
    if not plan.groups:
        raise ConfigError("--for is about contexts, and this model keeps none (an encoder).")
    chosen = cache_is_chosen(config)

    def taken(tokens: int, count: int) -> int:
        tables = 0 if chosen else plan.position_bytes * tokens
        return plan.slabs_for(tokens, count) * plan.slab_bytes + tables

    counts = range(1, room // plan.slab_bytes + 1)
    most = bisect_right(counts, room, key=lambda count: taken(users.tokens, count))
    lengths = range(1, max(subject.spec.max_position, users.tokens) + 1)
    longest = bisect_right(lengths, room, key=lambda tokens: taken(tokens, users.count))
    needed = plan.slabs_for(users.tokens, users.count) * plan.slab_bytes
    if not steps_fit:
        most = min(most, resolution.config.scheduler.max_num_seqs)
        return UsersAnswer(users, False, needed, most, 0)
    fits = taken(users.tokens, users.count) <= room
    return UsersAnswer(users, fits, needed, most, longest)


def _with_room(
    config: EngineConfig,
    subject: Subject,
    hardware: Hardware,
    found: UsersAnswer,
    choices: list[Reason],
) -> EngineConfig:
    """With a pool for all of them, where the default would be smaller."""
    if not found.fits or config.cache.kv_cache_memory_bytes is not None:
        return config
    plan = resolved(config, subject, hardware).plan
    if plan.kv_pool >= found.needed:
        return config
    why = f"all {found.users.count} at once; the default is {plan.kv_pool >> 20} MiB"
    choices.append(Reason("kv_cache_memory_bytes", found.needed, why))
    return replace(config, cache=replace(config.cache, kv_cache_memory_bytes=found.needed))
