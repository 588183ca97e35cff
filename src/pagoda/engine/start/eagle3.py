"""The EAGLE-3 head of an engine, found and held against its model."""

from pagoda.arch.spec import ModelSpec
from pagoda.config.engine import EngineConfig
from pagoda.engine.start.phases import Phases
from pagoda.planner.draft_model import named_draft
from pagoda.planner.eagle3 import head_name, wants_eagle3, with_head
from pagoda.weights.files import ModelFiles, open_model
from pagoda.weights.source import resolve_model


def with_eagle3_head(
    files: ModelFiles, spec: ModelSpec, config: EngineConfig, phases: Phases
) -> tuple[ModelFiles, ModelSpec]:
    """With the head that `config` asks for, which is fetched if need be; as they are where it asks
    for none.

    Raises what finding and opening a model raises, ConfigError for a model that can have no head,
    and CheckpointError or UnsupportedModelError for a head that does not fit.
    """
    if not wants_eagle3(config, spec):
        return files, spec
    name = head_name(config, spec)
    with phases.timed("find draft head"), named_draft(name, "draft head"):
        path = resolve_model(
            name,
            download_dir=config.model.download_dir,
            progress=lambda _, done, total: phases.progress(done, total),
        )
        return with_head(files, spec, open_model(path), name)
