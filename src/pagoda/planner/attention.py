"""Which backend attends to the paged cache for each kind of layer, why the others do not, and how
K and V lie for it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pagoda.arch.spec import AttentionSpec, ModelSpec
from pagoda.base.errors import ConfigError
from pagoda.base.facts import DeviceFacts
from pagoda.core.kvcache.spec import KVLayout
from pagoda.planner.reason import Reason

# The first that fits is taken.
_ORDER = ("flash-attn", "flashinfer", "triton", "torch")
_LARGEST_HEAD = 512
_TENSOR_CORES = 80
"""Capability from which on Triton's products use them."""
_GPU_BLOCK = 64
"""Tokens: a tile of keys in most kernels."""
_HALVES = ("float16", "bfloat16")


@dataclass(frozen=True)
class AttentionChoice:
    """What serves each kind of layer, by name; `native` is a CPU's own kernels."""

    layout: KVLayout = field(default_factory=KVLayout)
    backend: str = "native"
    others: Mapping[str, str] = field(default_factory=dict)
    """By kind of layer (`kind_of`), where another backend serves it."""
    library_prompts: bool = False
    """Prompts are torch's on this GPU, whichever backend serves a layer."""

    def of(self, mixer: AttentionSpec) -> str:
        return self.others.get(kind_of(mixer), self.backend)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({self.backend, *self.others.values()}))

    @property
    def captured(self) -> bool:
        """Whether steps can be: torch's asks the device for lengths."""
        return "torch" not in self.names

    @property
    def captures_guesses(self) -> bool:
        """Whether steps can be in which requests have several tokens: others' kernels are given
        one of each."""
        return self.names == ("triton",)

    @property
    def captures_prompts(self) -> bool:
        """Whether steps with prompts can be: others' kernels plan those on the host."""
        return self.captures_guesses and not self.library_prompts


def own_attention(device: str) -> AttentionChoice:
    """Pagoda's own kernels on `cpu` or `cuda`."""
    if device == "cpu":
        return AttentionChoice()
    return AttentionChoice(KVLayout("tokens", _GPU_BLOCK), "triton")


def choose_attention(
    spec: ModelSpec,
    wanted: str,
    dtype: str,
    facts: DeviceFacts,
    reasons: list[Reason],
    *,
    kv_dtype: str = "auto",
    block_size: int | None = None,
) -> AttentionChoice:
    """The backends of all layers, with a reason for each kind unless there was no choice.

    `block_size` overrides the backend's. ConfigError, with the reason, for a backend that cannot
    serve a layer.
    """
    kv_dtype = dtype if kv_dtype == "auto" else kv_dtype
    own = own_attention(facts.device)
    layout = replace(own.layout, block_size=block_size or own.layout.block_size)
    if facts.device == "cpu" and wanted == "auto":
        return replace(own, layout=layout)
    counts = Counter(kind_of(mixer) for mixer in spec.attentions)
    chosen = {}
    for kind, mixer in {kind_of(mixer): mixer for mixer in spec.attentions}.items():
        declined = {name: why_not(name, mixer, dtype, facts, kv_dtype=kv_dtype) for name in _ORDER}
        name = wanted
        if wanted == "auto":
            name = next(name for name in _ORDER if declined[name] is None)
        elif declined[wanted] is not None:
            raise ConfigError(
                f"--attention-backend {wanted} cannot serve this model here: {declined[wanted]}. "
                "Leave the flag out, or write auto."
            )
        chosen[kind] = name
        words = f"{counts[kind]} layers with {kind}"
        if name == "triton" and 0 < facts.capability < _TENSOR_CORES:
            words += (
                "; prompts by torch, which alone uses the tensor cores of an "
                f"sm_{facts.capability}, replies by Triton"
            )
        others = "as asked" if wanted != "auto" else _others(name, declined)
        reasons.append(Reason("attention", name, f"{words}; {others}"))
    backend = Counter(chosen.values()).most_common(1)[0][0] if chosen else "torch"
    return AttentionChoice(
        layout,
        backend,
        {kind: name for kind, name in chosen.items() if name != backend},
        library_prompts=0 < facts.capability < _TENSOR_CORES,
    )


def why_not(
    backend: str,
    mixer: AttentionSpec,
    dtype: str,
    facts: DeviceFacts,
    *,
    kv_dtype: str = "auto",
) -> str | None:
    """Why `backend` does not serve layers like `mixer`; None where it does."""
    if backend == "torch":
        return None
    if facts.device == "cpu":
        return "it computes on NVIDIA GPUs"
    if mixer.latent is not None:
        return "it has no latent attention, whose values are a part of its keys"
    if backend == "triton":
        if dtype == "bfloat16" and 0 < facts.capability < _TENSOR_CORES:
            return "bfloat16 needs sm_80 or later"
        if mixer.head_dim > _LARGEST_HEAD:
            return f"its heads are {_LARGEST_HEAD} wide at most, and these {mixer.head_dim}"
        return None
    if backend not in facts.attention_libraries:
        return "it is not installed, or this torch cannot call it"
    heads: tuple[int, ...] = (64, 128, 256)
    if backend == "flashinfer":
        if facts.capability < _TENSOR_CORES:
            return f"it is made for sm_80 and later, and this GPU is an sm_{facts.capability}"
    elif facts.capability // 10 == 10:
        heads = (64, 128)
    elif facts.capability != 90:
        return f"paged, it is made for sm_90 and sm_100, and this GPU is an sm_{facts.capability}"
    if dtype not in _HALVES:
        return f"it computes in float16 and bfloat16, not in {dtype}"
    if kv_dtype not in ("auto", dtype):
        return f"it does not read a cache of {kv_dtype} with activations in {dtype}"
    if mixer.head_dim not in heads:
        sizes = ", ".join(map(str, heads))
        return f"its heads are {sizes} wide, and these {mixer.head_dim}"
    if mixer.kind == "encoder":
        return "it reads a cache, and an encoder has none"
    if mixer.sinks:
        return "it has no sinks"
    if mixer.logit_cap is not None:
        return "it does not cap logits here"
    if mixer.chunked:
        return "it has windows and no chunks"
    if mixer.heard is not None:
        return "queries see the sound of their request alone here, and it has no mask for that"
    if mixer.both_ways:
        return "the tokens of a picture see each other here, and it has no mask for them"
    return None


def kind_of(mixer: AttentionSpec) -> str:
    """Words that say all that backends tell layers apart by."""
    sight = "full attention"
    if mixer.window is not None:
        sight = f"{'chunks' if mixer.chunked else 'a window'} of {mixer.window:,} tokens"
    if mixer.heard is not None:
        sight = f"attention to {mixer.heard:,} tokens of sound"
    if mixer.kind == "encoder":
        sight = "attention both ways"
    sinks = ", sinks" if mixer.sinks else ""
    cap = "" if mixer.logit_cap is None else ", capped logits"
    latent = "" if mixer.latent is None else ", latent"
    return f"{sight}, heads of {mixer.head_dim}{sinks}{cap}{latent}"


def _others(chosen: str, declined: Mapping[str, str | None]) -> str:
    """Why they were not chosen; those with the same reason together."""
    by_reason: dict[str, list[str]] = {}
    for name, why in declined.items():
        if name != chosen:
            by_reason.setdefault(why or "it is slower", []).append(name)
    return "; ".join(f"not {' or '.join(names)}: {why}" for why, names in by_reason.items())
