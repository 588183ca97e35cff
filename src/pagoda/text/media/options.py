"""What a request chooses of its media."""

from collections.abc import Mapping
from typing import Any

from pagoda.base.errors import RequestError
from pagoda.config.modality import MODALITIES
from pagoda.text.media.base import Options

_MAX_FPS = 1000.0


def media_options(media_io: Mapping[str, Any], processor: Mapping[str, Any]) -> dict[str, Options]:
    """By kind, of `media_io_kwargs` ({"video": {"fps": 2}}) and `mm_processor_kwargs` ({"fps": 2}),
    of which the second counts more. RequestError for what is not known or out of bounds."""
    if not (media_io or processor):
        return {}
    kinds = {kind: modality.options for kind, modality in MODALITIES.items() if modality.options}
    known = {name for options in kinds.values() for name in options}
    unknown = [f"media_io_kwargs.{name}" for name in media_io.keys() - kinds.keys()]
    for kind, names in kinds.items():
        given = media_io.get(kind) or {}
        if not isinstance(given, Mapping):
            raise RequestError(f"media_io_kwargs.{kind} must be an object.", "media_io_kwargs")
        unknown += [f"media_io_kwargs.{kind}.{name}" for name in given.keys() - set(names)]
    unknown += [f"mm_processor_kwargs.{name}" for name in processor.keys() - known]
    if unknown:
        raise RequestError(
            f"{min(unknown)[:100]} is not supported; fps and num_frames of videos are.",
            min(unknown).partition(".")[0],
        )
    return {
        kind: _checked({**(media_io.get(kind) or {}), **_named(processor, names)})
        for kind, names in kinds.items()
    }


def _named(given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in names}


def _checked(chosen: dict[str, Any]) -> Options:
    fps, count = chosen.pop("fps", None), chosen.pop("num_frames", None)
    if fps is not None:
        if isinstance(fps, bool) or not isinstance(fps, int | float):
            raise RequestError("fps must be a number of frames per second.", "mm_processor_kwargs")
        if not 0 < fps <= _MAX_FPS:
            raise RequestError(f"fps must be above 0, at most {_MAX_FPS:g}.", "mm_processor_kwargs")
        chosen["fps"] = float(fps)
    if count is not None:
        if type(count) is not int or (count < 1 and count != -1):
            raise RequestError("num_frames must be 1 or more, or -1.", "mm_processor_kwargs")
        if count != -1:  # as many as the model looks at
            chosen["num_frames"] = count
    return chosen
