"""Which family of image processors a model needs: its architecture says."""

from pagoda.arch.read import Reader
from pagoda.base.registry import Registry
from pagoda.text.images.base import ImageProcessor
from pagoda.weights.files import ModelFiles
from pagoda.weights.jsonfile import read_json

_FILES = ("preprocessor_config.json", "processor_config.json")

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


def image_processor_for(files: ModelFiles) -> ImageProcessor | None:
    """The model's, with what its own files say of sizes and colors; None for a model that reads
    text only. CheckpointError for files that are wrong."""
    # The second is where towers for pictures and sound may share a file.
    names = ("clip.projector_type", "clip.vision.projector_type")
    kind = str(next((files.metadata[name] for name in names if name in files.metadata), None))
    if kind in PROJECTORS:
        found: ImageProcessor = PROJECTORS.get(kind)(files.metadata)
        return found
    classes = (files.config or {}).get("architectures") or ()
    known = [name for name in classes if name in FAMILIES]
    if not known:
        return None
    processor: ImageProcessor = FAMILIES.get(known[0])(_reader(files))
    return processor


def _reader(files: ModelFiles) -> Reader:
    for name in _FILES:
        path = files.folder / name
        if path.is_file():
            found = read_json(path)
            # processor_config.json keeps those of several media apart.
            return Reader(found.get("image_processor", found), name)
    return Reader({}, _FILES[0])
