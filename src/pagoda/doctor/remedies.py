"""What would fit where the question does not."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pagoda.base.errors import CapacityError, ConfigError
from pagoda.base.units import format_bytes
from pagoda.config.engine import EngineConfig
from pagoda.doctor.answer import Answer, answer
from pagoda.doctor.hardware import Hardware
from pagoda.doctor.subject import Subject, find_subject

_MOST = 4
_COUNTS = (2, 4, 8)
_PLAIN = frozenset(("BF16", "F16", "F32"))


@dataclass(frozen=True)
class Remedy:
    words: str
    command: str


def remedies(asked: Answer) -> list[Remedy]:
    """Changes that make it fit, those first that cost the model least; at most four."""
    found = []
    for words, subject, hardware, config in _candidates(asked):
        users = asked.users.users if asked.users is not None else None
        try:
            made = answer(subject, hardware, config, users=users)
        except (CapacityError, ConfigError):
            continue
        if made.fits and made.resolution is not None:
            found.append(Remedy(words, _with_length(made).command))
        if len(found) == _MOST:
            break
    return found


def _with_length(made: Answer) -> Answer:
    """`auto` written out: a command says what it gives."""
    config, resolution = made.config, made.resolution
    if resolution is None or config.model.max_model_len != "auto":
        return made
    length = resolution.config.model.max_model_len
    return replace(made, config=replace(config, model=replace(config.model, max_model_len=length)))


_Candidate = tuple[str, Subject, Hardware, EngineConfig]


def _candidates(asked: Answer) -> Iterator[_Candidate]:
    subject, hardware, config = asked.subject, asked.hardware, asked.asked
    smaller = replace(config, cache=replace(config.cache, kv_cache_dtype="int8"))
    if config.cache.kv_cache_dtype in ("auto", "bfloat16", "float16", "float32"):
        yield "an int8 KV cache, half the bytes", subject, hardware, smaller
    if asked.users is None and isinstance(config.model.max_model_len, int):
        shorter = replace(config, model=replace(config.model, max_model_len="auto"))
        yield "the longest context that fits", subject, hardware, shorter
    yield "fewer requests at once and smaller steps", subject, hardware, _narrow(config)
    for ref, size in reversed(subject.others):
        if size < subject.file_bytes:
            other = find_subject(replace(config.model, model=ref))
            yield f"a smaller file, {format_bytes(size)}", other, hardware, config
    stored = {info.type for info in subject.tensors.values()}
    if config.model.quantization == "none" and stored <= _PLAIN and hardware.facts.packed_storages:
        for method, bits in (("int8", 8.5), ("int4", 5)):
            rounded = replace(config, model=replace(config.model, quantization=method))
            yield f"weights rounded to {bits} bits", subject, hardware, rounded
    if not hardware.here:
        for count in _COUNTS:
            if count > hardware.count:
                more = replace(hardware, count=count)
                parallel = replace(config.parallel, tensor_parallel_size=1)
                wide = replace(config, parallel=parallel)
                yield f"{count} of these devices", subject, more, wide


def _narrow(config: EngineConfig) -> EngineConfig:
    scheduler = config.scheduler
    if scheduler.max_num_seqs == "auto":
        scheduler = replace(scheduler, max_num_seqs=4)
    if scheduler.max_num_batched_tokens == "auto":
        scheduler = replace(scheduler, max_num_batched_tokens=256)
    return replace(config, scheduler=scheduler)
