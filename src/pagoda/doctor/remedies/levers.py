"""What can be changed where something does not fit, and what each change costs who asked."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from pagoda.base.units import format_bytes
from pagoda.base.words import say
from pagoda.config.engine import EngineConfig
from pagoda.config.option import flag_name
from pagoda.doctor.command import fields_of
from pagoda.doctor.remedies.case import Case, least_bytes
from pagoda.doctor.subject import find_subject, with_eagle3_head, without_drafts

_PLAIN = frozenset(("BF16", "F16", "F32"))
_WIDE = frozenset(("auto", "bfloat16", "float16", "float32"))
_COUNTS = (2, 4, 8)
_BITS = {"int8": "8.5", "int4": "5"}
# Flags that may be why something does not fit, and where they lie: those that bound or divide the
# memory, and those that matter where the rest needs less without them.
_BOUNDS = {
    "kv_cache_memory_bytes": "cache", "num_gpu_blocks_override": "cache",
    "gpu_memory_utilization": "cache", "dtype": "model", "tensor_parallel_size": "parallel",
    "pipeline_parallel_size": "parallel", "cpu_offload_gb": "device", "n_cpu_moe": "device",
    "n_gpu_layers": "device",
}  # fmt: skip
_SIZES = {
    "max_num_seqs": "scheduler", "block_size": "cache", "kv_cache_dtype": "cache",
    "image_max_tokens": "media", "video_max_tokens": "media", "speculative_config": "speculation",
}  # fmt: skip
_SECTIONS = {**_BOUNDS, **_SIZES}
# What steps have by default (`planner.resolve`).
_CPU_USUAL, _GPU_USUAL = 512, 2048
# (tokens of a step, requests at once, tokens of a picture, of a video), from large to small.
_CPU_STEPS = ((256, 16, 512, 2048), (128, 4, 256, 1024))
_GPU_STEPS = ((1024, 64, 2048, 8192), (512, 16, 1024, 2048), (256, 4, 512, 1024))


@dataclass(frozen=True)
class Change:
    words: str
    cost: int
    """The way with the least cost is shown first."""
    apply: Callable[[Case], Case]
    lever: int
    strength: int
    """On one lever a stronger change gives at least what a weaker one does."""
    drops: bool = False
    """Takes back something that was asked for."""


def inner_levers(case: Case, num_users: int) -> list[list[Change]]:
    """Changes of settings, KV cache and steps, from weak to strong; at most one of each is pulled.
    `num_users` requests must be able to run at once; 0 leaves their number open."""
    limiting = _limiting(case)
    levers = [[_without(name, lever)] for lever, name in enumerate(limiting)]
    if case.config.cache.kv_cache_dtype in _WIDE and case.subject.spec.encoder is None:
        levers.append([Change(say("an int8 KV cache"), 3, _int8_cache, len(levers), 1)])
    asked = case.config.scheduler.max_num_seqs
    if not isinstance(asked, int) or "max_num_seqs" in limiting:
        asked = num_users
    steps = _smaller_steps(case, num_users, asked, len(levers))
    return levers + ([steps] if steps else [])


def combinations(levers: Sequence[Sequence[Change]]) -> list[tuple[Change, ...]]:
    """All ways to pull them, the cheapest first; the first pulls none."""
    ways = product(*[(None, *lever) for lever in levers])
    chosen = [tuple(change for change in way if change is not None) for way in ways]
    return sorted(chosen, key=lambda way: sum(change.cost for change in way))


def other_weights(case: Case) -> Iterator[Change]:
    """The same model in fewer bits: smaller files beside it, or rounded as it loads."""
    for ref, size in reversed(case.subject.others):
        if size < case.subject.file_bytes:
            words = say("a smaller file, {size}", size=format_bytes(size))
            yield Change(words, 4, _with_file(ref), -1, 1)
    stored = {info.type for info in case.subject.tensors.values()}
    rounds = case.config.model.quantization == "none" and stored <= _PLAIN
    if rounds and case.hardware.facts.packed_storages:
        for method, bits in _BITS.items():
            words = say("weights rounded to {bits} bits", bits=bits)
            yield Change(words, 4, _with_method(method), -1, 1)


def more_devices(case: Case) -> Iterator[Change]:
    """Hardware that is not here yet may as well be more of it."""
    if case.hardware.here:
        return
    for count in _COUNTS:
        if count > case.hardware.count:
            words = say("{count} of these devices", count=count)
            yield Change(words, 8, _with_devices(count), -2, count)


def pulled(case: Case, changes: Sequence[Change]) -> Case:
    for change in changes:
        case = change.apply(case)
    return case


def words_of(changes: Sequence[Change]) -> list[str]:
    return [change.words for change in changes]


def _limiting(case: Case) -> list[str]:
    """Flags that were given and leave less room than their default."""
    given, default = fields_of(case.config), fields_of(EngineConfig())
    names = [name for name in _BOUNDS if given[name] != default[name]]
    share = "gpu_memory_utilization"
    found = [name for name in names if name != share or given[share] < default[share]]
    needed = least_bytes(case)
    for name in _SIZES:
        if given[name] != default[name] and needed is not None:
            without = least_bytes(_dropped(case, name))
            found += [name] if without is not None and without < needed else []
    return found


def _without(name: str, lever: int) -> Change:
    words = say("{flag} left out", flag=flag_name(name))
    return Change(words, 2, lambda case: _dropped(case, name), lever, 1, drops=True)


def _dropped(case: Case, name: str) -> Case:
    section = _SECTIONS[name]
    if name == "speculative_config":
        case = replace(case, subject=without_drafts(case.subject))
    part = replace(getattr(case.config, section), **{name: fields_of(EngineConfig())[name]})
    return replace(case, config=replace(case.config, **{section: part}))


def _int8_cache(case: Case) -> Case:
    cache = replace(case.config.cache, kv_cache_dtype="int8")
    return replace(case, config=replace(case.config, cache=cache))


def _smaller_steps(case: Case, num_users: int, least: int, lever: int) -> list[Change]:
    """Steps of `least` tokens or more."""
    on_cpu = case.hardware.facts.device == "cpu"
    usual, sizes = (_CPU_USUAL, _CPU_STEPS) if on_cpu else (_GPU_USUAL, _GPU_STEPS)
    most = case.config.scheduler.max_num_batched_tokens
    given = isinstance(most, int)
    changes = []
    if isinstance(most, int) and most > max(usual, least):
        changes.append(_usual_steps(lever))
    for size in sizes:
        tokens = max(size[0], least)
        if isinstance(most, int) and tokens >= most:
            continue
        words = say(
            "steps of {tokens:,} tokens instead of {most:,}"
            if given
            else "steps of {tokens:,} tokens",
            tokens=tokens,
            most=most,
        )
        if not least:
            words = say("{steps} with {count} requests", steps=words, count=size[1])
        if case.subject.spec.vision is not None and "auto" in _media(case.config):
            words = say("{steps} and smaller pictures", steps=words)
        strength = len(changes) + 1
        cost = strength + (3 if given else 0)
        apply = _with_steps(tokens, 0 if num_users else size[1], size[2:])
        changes.append(Change(words, cost, apply, lever, strength, drops=given))
    return changes


def _usual_steps(lever: int) -> Change:
    def apply(case: Case) -> Case:
        scheduler = replace(case.config.scheduler, max_num_batched_tokens="auto")
        return replace(case, config=replace(case.config, scheduler=scheduler))

    words = say("{flag} left out", flag="--max-num-batched-tokens")
    return Change(words, 2, apply, lever, 1, drops=True)


def _media(config: EngineConfig) -> tuple[int | str, int | str]:
    return config.media.image_max_tokens, config.media.video_max_tokens


def _with_steps(tokens: int, reqs: int, media: Sequence[int]) -> Callable[[Case], Case]:
    def apply(case: Case) -> Case:
        config = case.config
        scheduler = replace(config.scheduler, max_num_batched_tokens=tokens)
        if scheduler.max_num_seqs == "auto" and reqs:
            scheduler = replace(scheduler, max_num_seqs=reqs)
        shown = config.media
        vision = case.subject.spec.vision
        if vision is not None:
            image, video = _media(config)
            step = min(media[0], tokens) if vision.both_ways else media[0]
            shown = replace(
                shown,
                image_max_tokens=step if image == "auto" else image,
                video_max_tokens=media[1] if video == "auto" else video,
            )
        return replace(case, config=replace(config, scheduler=scheduler, media=shown))

    return apply


def _with_file(ref: str) -> Callable[[Case], Case]:
    def apply(case: Case) -> Case:
        found = find_subject(replace(case.config.model, model=ref))
        found = with_eagle3_head(found, case.config)
        return replace(case, subject=replace(found, draft=case.subject.draft))

    return apply


def _with_method(method: str) -> Callable[[Case], Case]:
    def apply(case: Case) -> Case:
        model = replace(case.config.model, quantization=method)
        return replace(case, config=replace(case.config, model=model))

    return apply


def _with_devices(count: int) -> Callable[[Case], Case]:
    def apply(case: Case) -> Case:
        parallel = replace(case.config.parallel, tensor_parallel_size=1)
        config = replace(case.config, parallel=parallel)
        return replace(case, hardware=replace(case.hardware, count=count), config=config)

    return apply
