"""Adapters of a model that is loaded: room beside its layers, and what fills it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pagoda.arch.adapters import AdaptedWeights
from pagoda.arch.spec import WeightRule
from pagoda.base.errors import CheckpointError, ConfigError, UnsupportedModelError
from pagoda.kernels import ops
from pagoda.layers.adapters import ShardAdapter
from pagoda.layers.linear import Linear
from pagoda.layers.moe import Router
from pagoda.models.base import Model
from pagoda.models.pieces import pieces
from pagoda.weights.adapters import AdaptedModule, AdapterFiles
from pagoda.weights.checkpoint import TensorInfo

Scaled = tuple[AdapterFiles, float]
"""An adapter, and what all of it is multiplied with."""


class ModelAdapters:
    """Slots beside each linear layer of the language model, routers, draft heads and output heads
    left out. A slot holds an adapter, or several whose sum is one: their ranks add up."""

    def __init__(self, model: Model, num_slots: int, max_rank: int, *, of_gguf: bool):
        """Takes the memory of all slots. `of_gguf`: as `AdaptedWeights` has it."""
        self.max_rank = max_rank
        self._stage = model.spec.stage
        whole = model.spec if self._stage is None else self._stage.whole
        self._weights = AdaptedWeights(whole, of_gguf)
        self._layers: dict[str, Linear] = {
            f"{path}.weight": layer
            for path, layer in model.named_modules()
            if path.startswith("layers.")
            and isinstance(layer, Linear)
            and not isinstance(layer, Router)
        }
        for layer in self._layers.values():
            layer.make_room(num_slots, max_rank)

    @torch.inference_mode()
    def load(self, slot: int, adapters: Sequence[Scaled]) -> None:
        """Replace what the slot holds. An adapter that does not fit raises before anything changes:
        CheckpointError, UnsupportedModelError for what is not served, ConfigError where its rank is
        too large."""
        parts: defaultdict[str, list[ShardAdapter]] = defaultdict(list)
        for files, scale in adapters:
            for param, found in self._parts(files, scale, parts).items():
                parts[param] += found
        for param, layer in self._layers.items():
            assert layer.adapters is not None
            layer.adapters.fill(slot, parts[param])

    def _parts(
        self, files: AdapterFiles, scale: float, before: Mapping[str, list[ShardAdapter]]
    ) -> dict[str, list[ShardAdapter]]:
        """What one adapter does to each layer, behind the ranks that others take there."""
        try:
            modules = list(self._modules(files))
        except UnsupportedModelError as error:
            raise UnsupportedModelError(
                f"The adapter {files.path} can't be served. {error}"
            ) from error
        found: defaultdict[str, list[ShardAdapter]] = defaultdict(list)
        for each in modules:
            taken = before.get(each.param, ())
            first = max((part.first + len(part.a) for part in taken), default=0)
            rank = first + each.module.rank
            if rank > self.max_rank:
                raise ConfigError(
                    f"The adapter {files.path} needs a rank of {rank}, and {self.max_rank} is the "
                    f"most; start the server with --max-lora-rank {rank}."
                )
            found[each.param] += each.shards(files, scale, first)
        return found

    def _modules(self, files: AdapterFiles) -> Iterator["_Adapted"]:
        for name, module in files.modules.items():
            source, rule = self._weights.find(name, files.kind)
            own = rule.param if self._stage is None else self._stage.own(rule.param)
            if own is None:
                continue  # another stage's
            rule = replace(rule, param=own)
            layer = self._layers.get(own)
            if layer is None:
                raise UnsupportedModelError(
                    f"Its module {ascii(name)[1:-1]} chooses experts, and adapters on that are not "
                    "served; merge the adapter into the checkpoint and serve that."
                )
            yield _Adapted(name, module, source, rule, layer)


@dataclass(frozen=True)
class _Adapted:
    """A module of an adapter, and where in the model it is."""

    name: str
    module: AdaptedModule
    source: str
    """The weight in the checkpoint."""
    rule: WeightRule
    layer: Linear

    @property
    def param(self) -> str:
        return self.rule.param

    def shards(self, files: AdapterFiles, scale: float, first: int) -> Iterator[ShardAdapter]:
        """For each matrix of the layer that the weight has rows of, this rank's part."""
        a, b = (_decoded(files, info) for info in (self.module.a, self.module.b))
        rows = _Matrix(b * (scale * self.module.scale))
        targets = self.layer.targets("weight")
        for index, (piece, target) in enumerate(
            zip(pieces(self.rule, targets), targets, strict=True)
        ):
            if piece.source != self.source:
                continue
            if piece.shape != (len(b), a.shape[1]):
                raise CheckpointError(
                    f"The adapter {files.path} is of another model: {ascii(self.name)[1:-1]} is "
                    f"for a weight of {[len(b), a.shape[1]]}; this model's is {list(piece.shape)}."
                )
            columns = target.columns or (slice(None),)
            own = piece.read(rows, rows.info, replace(target, columns=None))
            yield ShardAdapter(
                index, first, torch.cat([a[:, part] for part in columns], 1),
                own.contiguous().view(torch.float32),
            )  # fmt: skip


class _Matrix:
    """A matrix fp32 [rows, columns] as a checkpoint's only tensor: its rows are put in order as
    those of the weight that it is added to."""

    def __init__(self, matrix: torch.Tensor):
        self._rows = np.ascontiguousarray(matrix.numpy()).view(np.uint8)
        self.info = TensorInfo("matrix", tuple(matrix.shape), "F32", matrix.nbytes)
        self.tensors: Mapping[str, TensorInfo] = {"matrix": self.info}
        self.metadata: Mapping[str, Any] = {}

    def read(
        self, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> npt.NDArray[np.uint8]:
        """As `Checkpoint.read`; of all columns."""
        return self._rows[rows or slice(None)]

    def release(self, name: str) -> None:
        """There is no file."""

    def close(self) -> None:
        """There is no file."""


def _decoded(files: AdapterFiles, info: TensorInfo) -> torch.Tensor:
    """fp32, of the tensor's shape."""
    raw = torch.from_numpy(files.checkpoint.read(info.name).copy())
    out = ops.dequantize(raw, info.type)
    if not out.isfinite().all():
        raise CheckpointError(
            f"The adapter {files.path} has numbers in {info.name} that are not finite."
        )
    return out
