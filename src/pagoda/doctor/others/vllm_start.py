"""One start of vLLM: what it is asked for, and the plan that its own rules make of that."""

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from pagoda.base import env
from pagoda.base.errors import ConfigError
from pagoda.base.words import say
from pagoda.config.engine import EngineConfig
from pagoda.doctor.answer import Answer
from pagoda.doctor.command import differences, fields_of
from pagoda.doctor.machine.hardware import Hardware
from pagoda.doctor.subject import ASSUMED
from pagoda.planner.speculation import speculative_tokens
from pagoda.planner.vllm.plan import VllmPlan, plan_vllm
from pagoda.planner.vllm.setup import VERSIONS, VllmSetup, most_ranks

_OWN_CACHE = {"int8": "int8_per_token_head"}
# The first versions that have them: a size of the cache, and the state of recurrent layers at the
# ends of blocks.
SIZES_CACHE, ALIGNS = (0, 11), (0, 19)


@dataclass(frozen=True)
class VllmCase:
    made: Answer
    name: str
    hardware: Hardware
    asked: EngineConfig
    """With flags as they are called here."""

    @property
    def version(self) -> str:
        return version_named(self.name)

    def has(self, first: tuple[int, int]) -> bool:
        """This version has what came with version `first`."""
        major, minor = self.version.removeprefix("v").split(".")[:2]
        return (int(major), int(minor)) >= first


@dataclass(frozen=True)
class VllmStart:
    """A case with all that vLLM needs to know."""

    case: VllmCase
    plan: VllmPlan
    ranks: int
    drafted: int
    drafted_why: str

    @property
    def wanted(self) -> int:
        """Requests of the whole context that have to be held at once."""
        users = self.case.made.users
        return 1 if users is None else users.users.count

    @property
    def fits(self) -> bool:
        pool = self.plan.pool
        return self.plan.fits and (pool is None or pool.concurrency >= self.wanted)

    @property
    def problem(self) -> str:
        pool = self.plan.pool
        if self.fits or pool is None or not self.plan.fits:
            return self.plan.problem
        return say(
            "It holds {count:,} users of {length:,} tokens at once, and {wanted:,} are asked for.",
            count=int(pool.concurrency),
            length=self.plan.run.length,
            wanted=self.wanted,
        )


def version_named(name: str) -> str:
    """`vllm` alone is the newest that is known."""
    return name.removeprefix("vllm").lstrip("-=: ") or list(VERSIONS)[-1]


def start_of(case: VllmCase) -> VllmStart:
    """With as many GPUs as it can be split over, the context that fits where `auto` is asked for,
    and the utilization that this takes."""
    made, hardware, parallel = case.made, case.hardware, case.asked.parallel
    ranks, stages = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    if ranks * stages == 1 and hardware.count > 1:
        ranks = most_ranks(made.subject.spec, hardware.count)
    mode, override = case.asked.speculation.mode, env.get("PAGODA_SPEC_TOKENS")
    draft = speculative_tokens(mode, ranks, made.subject.drafts, override)
    assert hardware.capability is not None
    setup = VllmSetup(
        version=case.version,
        total=hardware.facts.total_memory,
        capability=hardware.capability,
        used=hardware.used,
        tensor_parallel=ranks,
        pipeline=stages,
        speculative_tokens=int(draft.value),
        mamba_align=case.asked.cache.enable_prefix_caching,
        **_typed(case),
    )
    start = VllmStart(case, _plan(case, setup), ranks, int(draft.value), draft.why)
    start = _granted(start, setup)
    wanted, pool = case.asked.model.max_model_len, start.plan.pool
    if wanted == "auto" and pool is not None and not start.fits and pool.largest_context:
        setup = replace(setup, max_model_len=pool.largest_context)
        start = _granted(replace(start, plan=_plan(case, setup)), setup)
    return start


def _granted(start: VllmStart, setup: VllmSetup) -> VllmStart:
    """With the utilization that the requests take, unless it or the pool's size is given."""
    plan, pool = start.plan, start.plan.pool
    if setup.gpu_memory_utilization is not None or setup.kv_cache_memory_bytes is not None:
        return start
    needed = 0
    if pool is not None:
        needed = start.wanted * pool.request_blocks(plan.run.length) * pool.block_bytes
    share = plan.utilization_for(needed)
    if share == plan.run.utilization:
        return start
    return replace(start, plan=_plan(start.case, replace(setup, gpu_memory_utilization=share)))


def sized_share(plan: VllmPlan) -> float:
    """The utilization that gives a pool of the size asked for, where no flag does."""
    parts = (plan.weights, plan.activations, plan.non_torch)
    taken = sum(part.likely for part in parts) + (plan.run.pool_bytes or 0)
    return min(1.0, ceil(1000 * taken / plan.run.total) / 1000)


def _plan(case: VllmCase, setup: VllmSetup) -> VllmPlan:
    subject = case.made.subject
    tensors = subject.tensors if subject.basis != ASSUMED else {}
    return plan_vllm(subject.spec, tensors, setup, subject.config)


def _typed(case: VllmCase) -> dict[str, Any]:
    """Flags that were given, and what users need; the others are the version's own defaults."""
    asked, given = case.asked, differences(case.asked)
    values = {**fields_of(asked), **flags_for_users(case)}
    typed: dict[str, Any] = {
        "dtype": asked.model.dtype,
        "quantization": "auto" if asked.model.quantization == "none" else asked.model.quantization,
        "kv_cache_dtype": cache_type(asked),
        "enforce_eager": asked.device.enforce_eager,
        "kv_cache_memory_bytes": asked.cache.kv_cache_memory_bytes,
    }
    if typed["quantization"] not in ("auto", "fp8"):
        raise ConfigError(
            f"--quantization {typed['quantization']} is not among those with which vLLM rounds "
            "weights while they load; take fp8, or a checkpoint that is quantized."
        )
    if "gpu_memory_utilization" in given:
        typed["gpu_memory_utilization"] = asked.cache.gpu_memory_utilization
    for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens"):
        if isinstance(values[name], int):
            typed[name] = values[name]
    return typed


def flags_for_users(case: VllmCase) -> dict[str, Any]:
    """All of them at once, unless flags say otherwise."""
    if case.made.users is None:
        return {}
    users, asked = case.made.users.users, case.asked
    found: dict[str, Any] = {}
    if not isinstance(asked.model.max_model_len, int):
        found["max_model_len"] = users.tokens
    if asked.scheduler.max_num_seqs == "auto":
        found["max_num_seqs"] = users.count
    return found


def cache_type(asked: EngineConfig) -> str:
    return _OWN_CACHE.get(asked.cache.kv_cache_dtype, asked.cache.kv_cache_dtype)
