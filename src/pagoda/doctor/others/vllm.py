"""What vLLM would take for the question, whether it starts, and the `vllm serve` that does."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from pagoda.base.errors import ConfigError
from pagoda.base.units import format_bytes
from pagoda.base.words import say
from pagoda.config.engine import EngineConfig
from pagoda.config.option import flag_name
from pagoda.doctor.answer import Answer, Flag
from pagoda.doctor.command import differences, fields_of, flag_words, quoted
from pagoda.doctor.notes import plan_notes
from pagoda.doctor.others.answer import OtherEngine
from pagoda.doctor.others.vllm_start import (
    ALIGNS,
    SIZES_CACHE,
    VllmCase,
    VllmStart,
    cache_type,
    flags_for_users,
    sized_share,
    start_of,
    version_named,
)
from pagoda.doctor.remedies.search import Remedy, offered, up_to_users
from pagoda.planner.vllm.plan import VllmPlan
from pagoda.planner.vllm.setup import version_of
from pagoda.weights.source import parse_ref

SERVER_FLAGS = frozenset(
    ("host", "port", "uds", "root_path", "api_key", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs",
     "ssl_cert_reqs")
)  # fmt: skip
"""Settings of the HTTP server that vLLM has under the same names."""
_SHARED = frozenset(
    ("tokenizer", "served_model_name", "dtype", "quantization", "max_model_len", "load_format",
     "chat_template", "chat_template_content_format", "reasoning_parser", "tool_call_parser",
     "generation_config", "override_generation_config", "seed", "max_logprobs", "revision",
     "download_dir", "block_size", "kv_cache_dtype", "kv_cache_memory_bytes",
     "gpu_memory_utilization", "num_gpu_blocks_override", "enable_prefix_caching",
     "max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "scheduling_policy",
     "long_prefill_token_threshold", "tensor_parallel_size", "pipeline_parallel_size",
     "data_parallel_size", "cpu_offload_gb", "enforce_eager", "allowed_media_domains",
     "limit_mm_per_prompt")
)  # fmt: skip
"""Settings of the engine."""
_UNPLANNED = (
    "block_size", "num_gpu_blocks_override", "data_parallel_size", "cpu_offload_gb",
    "limit_mm_per_prompt",
)  # fmt: skip
_FP8_CACHE = (8, 9)
_FEW_REQUESTS = 16
_MOST_REMEDIES = 5
_MOST_CHANGES = 3
_COUNTS = (2, 4, 8)


def vllm_engine(name: str, made: Answer) -> OtherEngine:
    """ConfigError for what vLLM cannot do."""
    case = VllmCase(made, name, made.hardware, made.asked)
    start = start_of(case)
    flags = _flags(start)
    config = replace(made.config, parallel=replace(
        made.config.parallel, tensor_parallel_size=start.ranks))  # fmt: skip
    plan = start.plan
    return OtherEngine(
        name,
        tuple(plan.rows()),
        start.fits,
        tuple(_lines(start)),
        problem=start.problem,
        command=_command(start) if start.fits else "",
        flags=tuple(flags) if start.fits else (),
        remedies=() if start.fits else tuple(_remedies(start)),
        findings=plan_notes(made.subject, made.hardware, config),
        numbers=_numbers(plan) if start.fits else {},
    )


def _numbers(plan: VllmPlan) -> dict[str, Any]:
    run, pool = plan.run, plan.pool
    found: dict[str, Any] = {"gpu_memory_utilization": run.utilization}
    if pool is not None:
        found |= {
            "max_model_len": run.length,
            "kv_tokens": pool.context_tokens,
            "max_concurrency": round(pool.concurrency, 2),
        }
    return found


def _lines(start: VllmStart) -> Iterator[str]:
    plan, name = start.plan, start.case.name
    asked = version_named(name)
    known = version_of(asked).name
    same = asked.removeprefix("v").split(".")[:2] == known.split(".")
    if not same:
        yield say(
            "planned by the rules of {known}: {asked} is not known here", known=known, asked=asked
        )
    if plan.pool is not None and plan.fits and (same or not plan.run.version.is_v0):
        yield from plan.pool.lines()
    yield say("{count} tokens drafted at a time: {why}", count=start.drafted, why=start.drafted_why)
    strange = [
        flag_name(name)
        for name, value in differences(start.case.asked).items()
        if name not in _SHARED and not (name == "speculative_config" and set(value) == {"mode"})
    ]
    if strange:
        yield say("no flags of vLLM, and left out: {flags}", flags=" ".join(strange))
    passed = [flag_name(name) for name in _UNPLANNED if name in differences(start.case.asked)]
    if passed:
        yield say(
            "in the command, and without effect on these numbers: {flags}", flags=" ".join(passed)
        )
    yield from plan.notes


def _flags(start: VllmStart) -> list[Flag]:
    """Every flag of the command but the model and the server's."""
    case, run = start.case, start.plan.run
    given = {name: value for name, value in differences(case.asked).items() if name in _SHARED}
    if "kv_cache_dtype" in given:
        given["kv_cache_dtype"] = cache_type(case.asked)
    if given.get("max_model_len") == "auto":
        del given["max_model_len"]
    sized = given.get("kv_cache_memory_bytes") is not None
    if sized and not case.has(SIZES_CACHE):
        del given["kv_cache_memory_bytes"]
    flags = [Flag(name, value, say("as you ask"), True) for name, value in given.items()]
    chosen: list[tuple[str, Any, str]] = []
    if case.made.users is not None:
        chosen += [(name, value, say("all users")) for name, value in flags_for_users(case).items()]
    if case.asked.model.max_model_len == "auto" and case.made.users is None:
        chosen.append(("max_model_len", run.length, say("the largest that fits")))
    if start.ranks > 1:
        why = say("of {count} GPUs", count=case.hardware.count)
        chosen.append(("tensor_parallel_size", start.ranks, why))
    if not sized:
        chosen.append(("gpu_memory_utilization", run.utilization, _why_share(start)))
    elif not case.has(SIZES_CACHE):
        why = say("for the KV cache that you ask for")
        chosen.append(("gpu_memory_utilization", sized_share(start.plan), why))
    if case.asked.model.tool_call_parser not in ("auto", "none"):
        chosen.append(("enable_auto_tool_choice", True, say("--tool-call-parser needs it")))
    if start.drafted and start.plan.run.drafters:
        draft = {"method": "mtp", "num_speculative_tokens": start.drafted}
        chosen.append(("speculative_config", draft, start.drafted_why))
    recurrent = start.plan.pool is not None and start.plan.pool.state_bytes > 0
    if run.aligned and recurrent and case.has(ALIGNS):
        too = say("prefixes of recurrent layers, too")
        chosen.append(("enable_prefix_caching", True, too))
        chosen.append(("mamba_cache_mode", "align", say("their states at the ends of blocks")))
    return flags + [Flag(*each, False) for each in chosen if each[0] not in given]


def _why_share(start: VllmStart) -> str:
    run = start.plan.run
    if run.utilization == run.version.utilization:
        return say("the default of {version}", version=run.version.name)
    return say(
        "{size} for vLLM; {left} stay for CUDA and its graphs",
        size=format_bytes(start.plan.requested),
        left=format_bytes(run.total - start.plan.requested),
    )


def _command(start: VllmStart) -> str:
    made = start.case.made
    ref = parse_ref(made.subject.ref)
    # Of a hub's model the whole name: what is left out here vLLM would not find.
    name = ref.name if ref.kind in ("hf", "modelscope") else made.subject.ref
    words = ["vllm", "serve", name]
    for flag in _flags(start):
        value = json.dumps(flag.value) if isinstance(flag.value, dict) else flag.value
        words += flag_words(flag.name, value)
    return f"{quoted(words)} {made.serving}".rstrip()


@dataclass(frozen=True)
class _Change:
    words: str
    apply: Callable[[VllmCase], VllmCase]


def _remedies(asked: VllmStart) -> Iterator[Remedy]:
    """What makes it start: one change, or as few as do; then a shorter context; then more GPUs."""
    changes = list(_changes(asked))
    found: list[tuple[_Change, ...]] = []
    for count in range(1, _MOST_CHANGES + 1):
        for way in combinations(changes, count):
            if len(found) < _MOST_REMEDIES and not any(set(some) <= set(way) for some in found):
                start = _tried(asked.case, way)
                if start is not None and start.fits:
                    found.append(way)
                    yield _remedy(way, start)
    if not found:
        yield from _shorter(asked, changes)
    for change in _more_gpus(asked.case):
        start = _tried(asked.case, (change,))
        if start is not None and start.fits:
            yield _remedy((change,), start)
            return


def _remedy(way: tuple[_Change, ...], start: VllmStart, offer: str = "") -> Remedy:
    return Remedy(offered(offer, [change.words for change in way]), _command(start))


def _tried(case: VllmCase, way: tuple[_Change, ...]) -> VllmStart | None:
    for change in way:
        case = change.apply(case)
    try:
        return start_of(case)
    except ConfigError:
        return None


def _shorter(asked: VllmStart, changes: list[_Change]) -> Iterator[Remedy]:
    """With as few changes as hold any; or as many users as it holds."""
    if asked.case.made.users is not None:
        yield from _fewer(asked)
        return
    longest = replace(asked.case, asked=_with(asked.case.asked, "model", max_model_len="auto"))
    for count in range(_MOST_CHANGES + 1):
        for way in combinations(changes, count):
            start = _tried(longest, way)
            if start is not None and start.fits:
                words = say("a context of {length:,} tokens", length=start.plan.run.length)
                yield _remedy(way, start, words)
                return


def _fewer(asked: VllmStart) -> Iterator[Remedy]:
    made, pool = asked.case.made, asked.plan.pool
    count = 0 if pool is None else int(pool.concurrency)
    if not count or made.users is None:
        return
    users = replace(made.users, users=replace(made.users.users, count=count))
    start = _tried(replace(asked.case, made=replace(made, users=users)), ())
    if start is not None and start.fits:
        yield _remedy((), start, up_to_users(count, users.users.tokens))


def _changes(start: VllmStart) -> Iterator[_Change]:
    case, run, asked = start.case, start.plan.run, start.case.asked
    given = differences(asked)
    for name in ("kv_cache_memory_bytes", "gpu_memory_utilization"):
        if name in given:
            default = fields_of(EngineConfig())[name]
            words = say("{flag} left out", flag=flag_name(name))
            yield _Change(words, _setter("cache", **{name: default}))
    if run.requests > _FEW_REQUESTS and case.made.users is None:
        words = f"--max-num-seqs {_FEW_REQUESTS}"
        yield _Change(words, _setter("scheduler", max_num_seqs=_FEW_REQUESTS))
    if asked.cache.kv_cache_dtype == "auto" and (case.hardware.capability or (0, 0)) >= _FP8_CACHE:
        yield _Change("--kv-cache-dtype fp8", _setter("cache", kv_cache_dtype="fp8"))
    if not run.eager and run.version.subtracts_graphs:
        yield _Change("--enforce-eager", _setter("device", enforce_eager=True))
    if asked.model.quantization == "none" and "quantization_config" not in case.made.subject.config:
        yield _Change("--quantization fp8", _setter("model", quantization="fp8"))


def _with(config: EngineConfig, section: str, **values: Any) -> EngineConfig:
    return replace(config, **{section: replace(getattr(config, section), **values)})


def _setter(section: str, **values: Any) -> Callable[[VllmCase], VllmCase]:
    return lambda case: replace(case, asked=_with(case.asked, section, **values))


def _more_gpus(case: VllmCase) -> Iterator[_Change]:
    """Changes of hardware that is not here."""
    for count in () if case.hardware.here else _COUNTS:
        if count > case.hardware.count:
            yield _Change(say("{count} of these GPUs", count=count), _devices(count))


def _devices(count: int) -> Callable[[VllmCase], VllmCase]:
    def apply(case: VllmCase) -> VllmCase:
        asked = _with(case.asked, "parallel", tensor_parallel_size=1, pipeline_parallel_size=1)
        return replace(case, hardware=replace(case.hardware, count=count), asked=asked)

    return apply
