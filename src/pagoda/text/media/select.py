"""Which processors a model's media take: its architecture, or its projector, says."""

from collections.abc import Collection, Mapping

from pagoda.arch.read import Reader
from pagoda.base.registry import attribute
from pagoda.config.modality import MODALITIES, Modality
from pagoda.text.media.base import Loader, Processor
from pagoda.weights.files import ModelFiles
from pagoda.weights.jsonfile import read_json

_COMMON = "processor_config.json"


def loader_of(modality: Modality) -> Loader:
    loader: Loader = attribute(modality.loader)()
    return loader


def processor_for(files: ModelFiles, kind: str) -> Processor | None:
    """The model's for media of one kind, with what its own files say; None where it takes none.
    CheckpointError for files that are wrong."""
    modality = MODALITIES[kind]
    # The second is where towers for pictures and sound may share a file.
    keys = ("clip.projector_type", "clip.vision.projector_type")
    projector = str(next((files.metadata[key] for key in keys if key in files.metadata), None))
    if projector in modality.projectors:
        processor: Processor = attribute(modality.projectors[projector])(files.metadata)
        return processor
    architectures = Reader(files.config or {}, "config.json").texts("architectures", ())
    known = [name for name in architectures if name in modality.families]
    if not known:
        return None
    processor = attribute(modality.families[known[0]])(_reader(files, modality))
    return processor


def processors_for(
    files: ModelFiles, encoders: Collection[str] = MODALITIES.keys()
) -> dict[str, Processor]:
    """By kind, of a model with such encoders: of each kind that has one, and a processor for it."""
    if not encoders:
        return {}
    found = {kind: processor_for(files, kind) for kind in MODALITIES}
    return {
        kind: processor
        for kind, processor in found.items()
        if processor is not None
        and processor.encoder in encoders
        and found[processor.encoder] is not None
    }


def _reader(files: ModelFiles, modality: Modality) -> Reader:
    """The first file with settings of this kind, below what processor_config.json says of all."""
    common = files.folder / _COMMON
    shared = read_json(common) if common.is_file() else {}
    for name in modality.settings:
        path = files.folder / name
        if path.is_file():
            found = read_json(path)
            # processor_config.json keeps those of several media apart.
            own = found.get(f"{modality.kind}_processor")
            return Reader({**(own if isinstance(own, Mapping) else found), **shared}, name)
    return Reader(shared, modality.settings[0])
