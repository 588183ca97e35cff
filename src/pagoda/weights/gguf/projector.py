"""The vision tower of a GGUF model, which lies in a file of its own (`mmproj-*.gguf`)."""

from pathlib import Path
from typing import Any

from pagoda.base.errors import CheckpointError, ConfigError
from pagoda.base.log import get_logger
from pagoda.weights.choice import best_projector, is_projector
from pagoda.weights.gguf.checkpoint import GgufCheckpoint

log = get_logger(__name__)

# Models of these architectures are looked after for a tower; others have none that is known here.
_SEEING = frozenset(
    (
        "qwen2vl",
        "qwen3vl",
        "qwen3vlmoe",
        "qwen35",
        "qwen35moe",
        "gemma3",
        "gemma4",
        "mistral3",
        "llama4",
    )
)
# So are these, of which some only have towers that are known: these kinds.
_SOME_SEEING = {
    "llama": ("pixtral",),
    "qwen2": ("internvl",),
    "qwen3": ("internvl",),
    "qwen3moe": ("internvl",),
}
_WIDTH = "clip.vision.projection_dim"
_KIND = "clip.projector_type"


def find_projector(model: Path, named: str | None) -> Path | None:
    """The file with the tower of a GGUF model: the one that is named, else the best of those beside
    it that fit its width; None where there is none.

    ConfigError for a named file that is no projector or is made for another model.
    """
    beside = [path for path in sorted(model.parent.glob("*.gguf")) if is_projector(path.name)]
    if named is None and not beside:
        return None
    if named is not None and not Path(named).is_file():
        raise ConfigError(f"--mmproj {named}: there is no such file.")
    metadata = GgufCheckpoint(model).metadata
    architecture = metadata.get("general.architecture")
    kinds = _SOME_SEEING.get(str(architecture))
    if architecture not in _SEEING and kinds is None:
        if named is not None:
            raise ConfigError(f"--mmproj {named}: the model ({architecture}) takes no images here.")
        return None
    width = metadata.get(f"{architecture}.embedding_length")
    if named is not None:
        path = Path(named)
        if not _fits(path, width, kinds):
            raise ConfigError(f"--mmproj {named} is made for another model than {model.name}.")
        return path
    fitting = [path for path in beside if _fits(path, width, kinds)]
    best = best_projector([path.name for path in fitting])
    if best is None:
        return None
    log.info("Images are read by %s; --mmproj names another file.", best)
    return model.parent / best


def _fits(path: Path, width: Any, kinds: tuple[str, ...] | None) -> bool:
    """Whether a file is a projector whose embeddings have that width, and of such a kind (None:
    any)."""
    try:
        metadata = GgufCheckpoint(path).metadata
    except CheckpointError as error:
        log.warning("%s", error)
        return False
    return metadata.get(_WIDTH) == width and (kinds is None or metadata.get(_KIND) in kinds)
