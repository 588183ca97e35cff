"""A mixture with experts on disk: where they are, and what that means for its speed."""

from pathlib import Path
from typing import TYPE_CHECKING

from pagoda.arch.spec import ModelSpec
from pagoda.base.disk import read_speed
from pagoda.kernels import cpu
from pagoda.planner.memory.assumed import dummy_of
from pagoda.planner.memory.streaming import speed_in_words
from pagoda.planner.resolve import Resolution
from pagoda.weights.expert_files import ExpertFolder
from pagoda.weights.files import ModelFiles

if TYPE_CHECKING:  # needs torch
    from pagoda.quant.streamed import StreamedExperts

# Long enough for a disk that others use, too.
_SECONDS = 0.25


def speed_of_disk(resolution: Resolution, files: ModelFiles, spec: ModelSpec) -> str:
    """How fast such an engine can be, in words."""
    written = sorted(_folder(resolution, files, spec).path.glob("layers.*"))
    file = next(iter([*written, *_weights(resolution, files)]), None)
    speed = None if file is None else read_speed(file, _SECONDS)
    return f"{speed_in_words(resolution.plan, spec, speed)}."


def streamed_experts(
    resolution: Resolution, files: ModelFiles, spec: ModelSpec
) -> "StreamedExperts":
    """Files for the plan's experts; CapacityError where the disk has no room for those that are not
    there yet."""
    from pagoda.quant.streamed import StreamedExperts

    placement = resolution.plan.placement
    folder = _folder(resolution, files, spec)
    there = sum(file.stat().st_size for file in folder.path.glob("layers.*"))
    folder.make_room(max(0, placement.nbytes - there))
    return StreamedExperts(placement.params, folder)


def _folder(resolution: Resolution, files: ModelFiles, spec: ModelSpec) -> ExpertFolder:
    model = resolution.config.model
    contents = [cpu.panel_layout(), model.quantization]
    if model.dummy:
        contents += [spec, dummy_of(spec, files.config)]
    return ExpertFolder(files.path, _weights(resolution, files), repr(contents))


def _weights(resolution: Resolution, files: ModelFiles) -> list[Path]:
    return [] if resolution.config.model.dummy else files.weight_paths()
