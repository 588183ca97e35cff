"""Which backend attends to the paged cache for each kind of layer, why the others do not, and how
K and V lie for it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pagoda.arch.spec import AttentionSpec, ModelSpec
from pagoda.base.errors import ConfigError
from pagoda.base.facts import DeviceFacts
from pagoda.base.words import say, with_commas, with_or, with_semicolons
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
        words = say("{count} layers with {kind}", count=counts[kind], kind=kind)
        if name == "triton" and 0 < facts.capability < _TENSOR_CORES:
            words = say(
                "{layers}; prompts by torch, which alone uses the tensor cores of an "
                "sm_{capability}, replies by Triton",
                layers=words,
                capability=facts.capability,
            )
        others = say("as asked") if wanted != "auto" else _others(name, declined)
        reasons.append(Reason("attention", name, with_semicolons([words, others])))
    backend = Counter(chosen.values()).most_common(1)[0][0] if chosen else "torch"
    return AttentionChoice(
        layout,
        backend,
        {str(kind): name for kind, name in chosen.items() if name != backend},
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
        return say("it computes on NVIDIA GPUs")
    if mixer.latent is not None:
        return say("it has no latent attention, whose values are a part of its keys")
    if backend == "triton":
        if dtype == "bfloat16" and 0 < facts.capability < _TENSOR_CORES:
            return say("bfloat16 needs sm_80 or later")
        if mixer.head_dim > _LARGEST_HEAD:
            return say(
                "its heads are {most} wide at most, and these {width}",
                most=_LARGEST_HEAD, width=mixer.head_dim,
            )  # fmt: skip
        return None
    if backend not in facts.attention_libraries:
        return say("it is not installed, or this torch cannot call it")
    heads: tuple[int, ...] = (64, 128, 256)
    if backend == "flashinfer":
        if facts.capability < _TENSOR_CORES:
            return say(
                "it is made for sm_80 and later, and this GPU is an sm_{capability}",
                capability=facts.capability,
            )
    elif facts.capability // 10 == 10:
        heads = (64, 128)
    elif facts.capability != 90:
        return say(
            "paged, it is made for sm_90 and sm_100, and this GPU is an sm_{capability}",
            capability=facts.capability,
        )
    if dtype not in _HALVES:
        return say("it computes in float16 and bfloat16, not in {dtype}", dtype=dtype)
    if kv_dtype not in ("auto", dtype):
        return say(
            "it does not read a cache of {cached} with activations in {dtype}",
            cached=kv_dtype, dtype=dtype,
        )  # fmt: skip
    if mixer.head_dim not in heads:
        sizes = ", ".join(map(str, heads))
        return say(
            "its heads are {sizes} wide, and these {width}", sizes=sizes, width=mixer.head_dim
        )
    if mixer.kind == "encoder":
        return say("it reads a cache, and an encoder has none")
    if mixer.sinks:
        return say("it has no sinks")
    if mixer.logit_cap is not None:
        return say("it does not cap logits here")
    if mixer.chunked:
        return say("it has windows and no chunks")
    if mixer.heard is not None:
        return say("queries see the sound of their request alone here, and it has no mask for that")
    if mixer.both_ways:
        return say("the tokens of a picture see each other here, and it has no mask for them")
    return None


def kind_of(mixer: AttentionSpec) -> str:
    """Words that say all that backends tell layers apart by."""
    sight = say("full attention")
    if mixer.window is not None:
        sight = say(
            "chunks of {count:,} tokens" if mixer.chunked else "a window of {count:,} tokens",
            count=mixer.window,
        )
    if mixer.heard is not None:
        sight = say("attention to {count:,} tokens of sound", count=mixer.heard)
    if mixer.kind == "encoder":
        sight = say("attention both ways")
    parts = [sight, say("heads of {width}", width=mixer.head_dim)]
    if mixer.sinks:
        parts.append(say("sinks"))
    if mixer.logit_cap is not None:
        parts.append(say("capped logits"))
    if mixer.latent is not None:
        parts.append(say("latent"))
    return with_commas(parts)


def _others(chosen: str, declined: Mapping[str, str | None]) -> str:
    """Why they were not chosen; those with the same reason together."""
    by_reason: dict[str, list[str]] = {}
    for name, why in declined.items():
        if name != chosen:
            by_reason.setdefault(why or say("it is slower"), []).append(name)
    return with_semicolons(
        say("not {names}: {why}", names=with_or(names), why=why) for why, names in by_reason.items()
    )
