"""Which families of image and video processors a model needs: its architecture says."""

from typing import Any

from pagoda.arch.read import Reader
from pagoda.base.registry import Registry
from pagoda.text.images.base import ImageProcessor
from pagoda.text.images.video import VideoProcessor
from pagoda.weights.files import ModelFiles
from pagoda.weights.jsonfile import read_json

_IMAGE_FILES = ("preprocessor_config.json", "processor_config.json")
# A video processor without a file of its own has the sizes of the images'.
_VIDEO_FILES = (
    "video_preprocessor_config.json",
    "processor_config.json",
    "preprocessor_config.json",
)

FAMILIES = Registry(
    "image processor",
    {
        "Qwen3VLForConditionalGeneration": "pagoda.text.images.qwen_vl:from_config",
        "Qwen3_5ForConditionalGeneration": "pagoda.text.images.qwen_vl:from_config",
        "Qwen3_5MoeForConditionalGeneration": "pagoda.text.images.qwen_vl:from_config",
        "Qwen3VLMoeForConditionalGeneration": "pagoda.text.images.qwen_vl:from_config",
        "Gemma4ForConditionalGeneration": "pagoda.text.images.gemma4:from_config",
    },
)


PROJECTORS = Registry(
    "vision projector",
    {
        "qwen3vl_merger": "pagoda.text.images.qwen_vl:from_gguf",
        "gemma4v": "pagoda.text.images.gemma4:from_gguf",
    },
)


VIDEO_FAMILIES = Registry(
    "video processor",
    {
        "Qwen3VLForConditionalGeneration": "pagoda.text.images.qwen_video:from_config",
        "Qwen3_5ForConditionalGeneration": "pagoda.text.images.qwen_video:from_config",
        "Qwen3_5MoeForConditionalGeneration": "pagoda.text.images.qwen_video:from_config",
        "Qwen3VLMoeForConditionalGeneration": "pagoda.text.images.qwen_video:from_config",
    },
)
VIDEO_PROJECTORS = Registry(
    "video projector", {"qwen3vl_merger": "pagoda.text.images.qwen_video:from_gguf"}
)


def image_processor_for(files: ModelFiles) -> ImageProcessor | None:
    """The model's, with what its own files say of sizes and colors; None for a model that reads
    text only. CheckpointError for files that are wrong."""
    found: ImageProcessor | None = _processor(
        files, PROJECTORS, FAMILIES, "image_processor", _IMAGE_FILES
    )
    return found


def video_processor_for(files: ModelFiles) -> VideoProcessor | None:
    """As `image_processor_for`, for models that see videos."""
    found: VideoProcessor | None = _processor(
        files, VIDEO_PROJECTORS, VIDEO_FAMILIES, "video_processor", _VIDEO_FILES
    )
    return found


def _processor(
    files: ModelFiles,
    projectors: Registry,
    families: Registry,
    section: str,
    names: tuple[str, ...],
) -> Any:
    # The second is where towers for pictures and sound may share a file.
    keys = ("clip.projector_type", "clip.vision.projector_type")
    kind = str(next((files.metadata[key] for key in keys if key in files.metadata), None))
    if kind in projectors:
        return projectors.get(kind)(files.metadata)
    architectures = Reader(files.config or {}, "config.json").texts("architectures", ())
    known = [name for name in architectures if name in families]
    return families.get(known[0])(_reader(files, section, names)) if known else None


def _reader(files: ModelFiles, section: str, names: tuple[str, ...]) -> Reader:
    for name in names:
        path = files.folder / name
        if path.is_file():
            whole = Reader(read_json(path), name)
            # processor_config.json keeps those of several media apart.
            return whole.section(section) or whole
    return Reader({}, names[0])
