"""Experts that stay in files: they pass through memory when a model is first loaded, are written as
the kernels take them, and from then on mapped."""

from pathlib import Path

from pagoda.base.errors import CapacityError
from pagoda.base.units import format_bytes
from pagoda.base.whole import whole_file
from pagoda.quant.experts import PackedExpertFormat
from pagoda.weights.expert_files import ExpertFolder


class StreamedExperts:
    """Those of the parameters `params`, as weight rules name them, in files of a folder."""

    device = "cpu"

    def __init__(self, params: frozenset[str], folder: ExpertFolder):
        self.params = params
        self._folder = folder
        self.nbytes = 0
        """Bytes that are mapped so far."""

    def find(self, param: str, experts: PackedExpertFormat) -> bool:
        """Map them, as an earlier start has written them; False where none has. CapacityError where
        that cannot be."""
        path = self._path(param, experts)
        if not path.is_file() or path.stat().st_size != experts.file_bytes:
            return False
        self._map(path, experts)
        return True

    def keep(self, param: str, experts: PackedExpertFormat) -> None:
        """Write what is loaded, and map it. CapacityError where that cannot be."""
        path = self._path(param, experts)
        try:
            with whole_file(path, 0o600) as file:
                experts.write(file)
        except OSError as error:
            raise CapacityError(
                f"{format_bytes(experts.nbytes)} of experts cannot be written to {path}: "
                f"{error.strerror}. Free some room there, or set PAGODA_CACHE to a folder of "
                "another disk."
            ) from error
        self._map(path, experts)

    def _map(self, path: Path, experts: PackedExpertFormat) -> None:
        try:
            experts.map(path, self._folder)
        except OSError as error:
            raise CapacityError(
                f"{path} cannot be mapped: {error.strerror}. Set PAGODA_CACHE to a folder of "
                "another disk."
            ) from error
        self.nbytes += experts.nbytes

    def _path(self, param: str, experts: PackedExpertFormat) -> Path:
        return self._folder.path / f"{param}.{'-'.join(experts.storages)}"
