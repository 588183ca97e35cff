"""The draft model of an engine: found, held against its model, loaded."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pagoda.arch.spec import ModelSpec
from pagoda.base.log import get_logger
from pagoda.config.engine import EngineConfig, ModelConfig
from pagoda.core.kvcache.spec import kv_groups
from pagoda.engine.start.libraries import Libraries
from pagoda.engine.start.model_files import checkpoint_of, planned_tensors, spec_of
from pagoda.engine.start.phases import Phases, memory_guard
from pagoda.engine.start.progress import WEIGHTS_PHASE
from pagoda.planner.attention import choose_attention
from pagoda.planner.draft_model import (
    DraftModel,
    check_draft_model,
    check_tokens,
    draft_config,
    draft_model_name,
    named_draft,
)
from pagoda.planner.memory.assumed import dummy_of
from pagoda.planner.resolve import Resolution
from pagoda.weights.files import ModelFiles, open_model
from pagoda.weights.source import resolve_model

if TYPE_CHECKING:  # torch comes in on a thread, while the headers are read
    from pagoda.models.base import Model
    from pagoda.runtime.device import Device

log = get_logger(__name__)


@dataclass(frozen=True)
class FoundDraft:
    files: ModelFiles
    model: DraftModel


def find_draft_model(
    config: EngineConfig, files: ModelFiles, spec: ModelSpec, phases: Phases
) -> FoundDraft | None:
    """The draft model that is asked for beside the model of `files`, fetched if need be.

    Raises what finding and opening a model raises, and ConfigError for one that does not fit.
    """
    name = draft_model_name(config, spec)
    if name is None:
        return None
    asked = draft_config(name, config)
    with phases.timed("find draft model"), named_draft(name):
        path = resolve_model(
            name,
            download_dir=asked.download_dir,
            progress=lambda _, done, total: phases.progress(done, total),
        )
    with phases.timed("read draft headers"):
        with named_draft(name):
            found = replace(open_model(path), projector=None)
            small = spec_of(found, asked)
        draft = DraftModel(name, small, planned_tensors(found, small, asked))
        check_draft_model(config, spec, draft)
        if found.path != files.path:
            _check_tokens(config, files, asked, found)
    if small.max_position < spec.max_position:
        log.info(
            "The draft model guesses within the first %s tokens of a text, for which it was "
            "trained.", f"{small.max_position:,}",
        )  # fmt: skip
    return FoundDraft(found, draft)


def load_draft_model(
    found: FoundDraft,
    libraries: Libraries,
    device: "Device",
    resolution: Resolution,
    phases: Phases,
) -> "Model":
    """On the model's device, in its type of activations, with its own bits for weights."""
    spec, config = found.model.spec, resolution.config
    dummy = dummy_of(spec, found.files.config) if config.model.dummy else None
    stored = replace(config.model, quantization="none")
    layout = resolution.attention.layout
    attention = choose_attention(
        spec, "auto", config.model.dtype, device.facts(), [],
        kv_dtype=config.cache.kv_cache_dtype, block_size=layout.block_size,
    )  # fmt: skip
    before = device.memory_used()
    with phases.timed(WEIGHTS_PHASE), memory_guard("loading the draft model", resolution):
        model = libraries.build_model(
            spec,
            dummy or checkpoint_of(found.files, spec, stored),
            dtype=device.dtype(config.model.dtype),
            device=device.place_of(frozenset()),
            progress=phases.progress,
            packed=resolution.packed,
            attention=attention,
        )
    phases.ledger.measured["draft model"] = device.memory_used() - before
    return model


def largest_steps(
    step: Callable[..., None], draft: Callable[..., None], spec: ModelSpec, resolution: Resolution
) -> Callable[..., None]:
    """`step`, and then that of the draft model of `spec`, which takes as much as they need at most;
    both as `runtime.profile.largest_step`."""
    kv_dtype = resolution.config.cache.kv_cache_dtype
    groups = kv_groups(spec, resolution.attention.layout, kv_dtype)

    def both(model_groups: object, *sizes: object) -> None:
        step(model_groups, *sizes)
        draft(groups, *sizes)

    return both


def _check_tokens(
    config: EngineConfig, files: ModelFiles, asked: ModelConfig, found: ModelFiles
) -> None:
    # Tokenizers bring a library of their own; only who asks for a draft model pays for it.
    from pagoda.engine.served.text_side import tokenizer_of

    model = tokenizer_of(config.model, files)
    with named_draft(asked.model):
        draft = tokenizer_of(asked, found)
    check_tokens(asked.model, model, draft)
