"""A second, smaller model that guesses tokens: whether it can, and what it takes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pagoda.arch.recurrent import RecurrentSpec
from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import CheckpointError, ConfigError, SourceError
from pagoda.base.facts import DeviceFacts
from pagoda.config.engine import EngineConfig, ModelConfig
from pagoda.planner.memory import plan as memory
from pagoda.planner.memory.plan import MemoryPlan
from pagoda.planner.memory.tensors import parameter_count
from pagoda.planner.memory.weights import held_weights
from pagoda.planner.resolved import ResolvedConfig
from pagoda.weights.checkpoint import TensorInfo

if TYPE_CHECKING:  # what tokenizes is imported by who compares tokens
    from pagoda.text.tokenizer import Tokenizer

# Tables are padded to different sizes, and a later version of a family has more special tokens.
_LEAST_SHARED = 0.9
# A few special tokens may have other names: Llama 3's and Llama 3.2's differ in three of 128,256.
_MOST_DIFFERENT = 1 / 1000


@dataclass(frozen=True)
class DraftModel:
    name: str
    """As it was asked for."""
    spec: ModelSpec
    tensors: Mapping[str, TensorInfo]


def draft_model_name(config: EngineConfig, spec: ModelSpec) -> str | None:
    """The draft model that is asked for beside the model of `spec`; None where nothing drafts.
    ConfigError where it has no name."""
    asked = config.speculation
    if asked.method != "draft" or not asked.count("num_speculative_tokens", 1):
        return None
    if spec.encoder is not None or not spec.writes_text:
        return None
    asked.check()
    return asked.model


def draft_config(name: str, config: EngineConfig) -> ModelConfig:
    """The draft model's own: as it is stored, from where models come from."""
    return ModelConfig(
        name, load_format=config.model.load_format, download_dir=config.model.download_dir
    )


@contextmanager
def named_draft(name: str, what: str = "draft model") -> Iterator[None]:
    """Let errors say of which of the two models they speak, and what named it."""
    try:
        yield
    except (CheckpointError, SourceError) as error:
        raise type(error)(
            f"The {what} {name} cannot be used: {error} It is what `model` of "
            "--speculative-config (or -md) names."
        ) from error


def beside(spec: ModelSpec, draft: DraftModel) -> ModelSpec:
    """The spec of a model for which `draft` guesses."""
    return replace(spec, draft_model=draft.spec)


def check_draft_model(config: EngineConfig, spec: ModelSpec, draft: DraftModel) -> None:
    """ConfigError, with the reason, for one that cannot guess for the model of `spec`."""
    why = _why_not(config, spec, draft.spec)
    if why:
        raise ConfigError(_refusal(draft.name, why))


def check_tokens(name: str, model: "Tokenizer", draft: "Tokenizer") -> None:
    """ConfigError unless ids mean the same to both, a few special tokens aside."""
    sizes = model.vocab_size, draft.vocab_size
    shared, different = 0, []
    for index in range(min(sizes)):
        one, other = model.token_bytes(index), draft.token_bytes(index)
        if one and other:  # else an id without a token, as padding is
            shared += 1
            if one != other:
                different.append(index)
    if len(different) > _MOST_DIFFERENT * shared:
        first = different[0]
        why = (
            f"{len(different):,} of its tokens are others, such as {first}, which is "
            f"{draft.token_text(first)!r} to it and {model.token_text(first)!r} to the model"
        )
        raise ConfigError(_refusal(name, why))
    if shared < _LEAST_SHARED * max(sizes):
        raise ConfigError(_refusal(name, _sizes(sizes[1], sizes[0])))


def _why_not(config: EngineConfig, spec: ModelSpec, draft: ModelSpec) -> str:
    parallel = config.parallel
    if parallel.num_ranks > 1:
        return "the model is split over several devices, and a draft model runs on one"
    if draft.encoder is not None or not draft.writes_text:
        return "it makes vectors and scores, and no text"
    if draft.vision is not None:
        return "it has a vision tower, and drafts are made of text alone"
    if any(isinstance(layer.mixer, RecurrentSpec) for layer in draft.layers):
        return "it has recurrent layers, which cannot go back behind a wrong guess"
    if min(draft.vocab_size, spec.vocab_size) < _LEAST_SHARED * max(
        draft.vocab_size, spec.vocab_size
    ):
        return _sizes(draft.vocab_size, spec.vocab_size)
    sizes = [parameter_count(one) for one in (draft, spec)]
    if sizes[0] > sizes[1]:
        large, small = (f"{size / 1e6:,.1f}M" for size in sizes)
        return f"it is the larger one, of {large} parameters against {small}"
    return ""


def _sizes(draft: int, model: int) -> str:
    return f"its vocabulary has {draft:,} tokens, and the model's {model:,}"


def _refusal(name: str, why: str) -> str:
    return (
        f"The draft model {name} cannot guess for this model: {why}. Name a smaller text model of "
        "the same family, which has the same tokenizer, or leave the draft model out."
    )


def with_draft_memory(
    plan: MemoryPlan, draft: DraftModel, config: ResolvedConfig, facts: DeviceFacts
) -> MemoryPlan:
    """`plan`, whose groups have the draft model's layers, with what else it takes: its weights,
    the activations of its steps, and its tables by position."""
    dtype, scheduler = config.model.dtype, config.scheduler
    held = held_weights(draft.spec, draft.tensors, dtype, facts.packed_storages)
    activations = memory.activation_bytes(
        draft.spec, dtype, scheduler.max_num_batched_tokens, scheduler.max_num_seqs
    )
    return replace(
        plan,
        draft_model=round(sum(part.nbytes for part in held)),
        activations=plan.activations + activations,
        position_bytes=plan.position_bytes + memory.position_bytes(draft.spec),
    )
