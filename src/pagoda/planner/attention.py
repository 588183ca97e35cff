"""Which kernels attend to the paged cache, for each kind of layer, and why the others do not."""

from collections import Counter

from pagoda.arch.spec import AttentionSpec, ModelSpec
from pagoda.base.errors import ConfigError
from pagoda.base.facts import DeviceFacts
from pagoda.planner.reason import Reason

# The first that fits is taken.
_ORDER = ("triton", "flashinfer", "flash-attn", "torch")
_LARGEST_HEAD = 512
_TENSOR_CORES = 80
"""Capability from which on Triton's products use them."""


def choose_attention(
    spec: ModelSpec, wanted: str, dtype: str, facts: DeviceFacts, reasons: list[Reason]
) -> str:
    """The backend of all layers, `native` for a CPU's own kernels. For each kind of layer a reason
    is added, unless there was no choice.

    ConfigError, with the reason, for a backend that cannot serve a layer.
    """
    if facts.device == "cpu" and wanted == "auto":
        return "native"
    for mixer in set(spec.attentions):
        why = None if wanted == "auto" else why_not(wanted, mixer, dtype, facts)
        if why is not None:
            raise ConfigError(
                f"--attention-backend {wanted} cannot serve this model here: {why}. "
                "Leave the flag out, or write auto."
            )
    chosen = wanted
    if wanted == "auto":
        chosen = next(name for name in _ORDER if _fits_all(name, spec, dtype, facts))
    counts = Counter(_kind(mixer) for mixer in spec.attentions)
    for kind, mixer in {_kind(mixer): mixer for mixer in spec.attentions}.items():
        words = f"{counts[kind]} layers with {kind}"
        if chosen == "triton" and 0 < facts.capability < _TENSOR_CORES:
            words += (
                "; prompts by torch, which alone uses the tensor cores of an "
                f"sm_{facts.capability}, replies by Triton"
            )
        others = "as asked" if wanted != "auto" else _others(chosen, mixer, dtype, facts)
        reasons.append(Reason("attention", chosen, f"{words}; {others}"))
    return chosen


def why_not(backend: str, mixer: AttentionSpec, dtype: str, facts: DeviceFacts) -> str | None:
    """Why `backend` does not serve layers like `mixer`; None where it does."""
    if backend == "torch":
        return None
    if facts.device == "cpu":
        return "it computes on NVIDIA GPUs"
    if backend == "flash-attn" and 0 < facts.capability < _TENSOR_CORES:
        return f"it is made for sm_80 and later, and this GPU is an sm_{facts.capability}"
    if backend in ("flashinfer", "flash-attn"):
        # V's would fit, K's do not: `kernels.ref.kv_cache` says how both lie.
        return (
            "it reads a token's key as one row, and this cache keeps keys dimension by dimension, "
            "so it would need a copy of them at each step"
        )
    if dtype == "bfloat16" and 0 < facts.capability < _TENSOR_CORES:
        return "bfloat16 needs sm_80 or later"
    if mixer.head_dim > _LARGEST_HEAD:
        return f"its heads are {_LARGEST_HEAD} wide at most, and these {mixer.head_dim}"
    return None


def _fits_all(backend: str, spec: ModelSpec, dtype: str, facts: DeviceFacts) -> bool:
    return all(why_not(backend, mixer, dtype, facts) is None for mixer in set(spec.attentions))


def _kind(mixer: AttentionSpec) -> str:
    sight = "full attention"
    if mixer.window is not None:
        sight = f"{'chunks' if mixer.chunked else 'a window'} of {mixer.window:,} tokens"
    if mixer.kind == "encoder":
        sight = "attention both ways"
    return f"{sight}, heads of {mixer.head_dim}{', sinks' if mixer.sinks else ''}"


def _others(chosen: str, mixer: AttentionSpec, dtype: str, facts: DeviceFacts) -> str:
    """Why they were not chosen; those with the same reason together."""
    by_reason: dict[str, list[str]] = {}
    for name in _ORDER:
        if name != chosen:
            why = why_not(name, mixer, dtype, facts) or "it is slower"
            by_reason.setdefault(why, []).append(name)
    return "; ".join(f"not {' or '.join(names)}: {why}" for why, names in by_reason.items())
