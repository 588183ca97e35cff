"""Adapters of a model that is loaded: room beside its layers, and what fills it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pagoda.arch.adapters import AdaptedWeights, expert_module
from pagoda.arch.spec import WeightRule
from pagoda.base.errors import CheckpointError, ConfigError, UnsupportedModelError
from pagoda.layers.adapters import ShardAdapter
from pagoda.layers.linear import Linear
from pagoda.layers.moe import ExpertMatrices, MixtureOfExperts, Router
from pagoda.models.base import Model
from pagoda.models.expert_adapters import AdaptedExperts, decoded, turned_around
from pagoda.models.pieces import pieces
from pagoda.planner.resolved import ResolvedAdapters
from pagoda.weights.adapters import AdaptedModule, AdapterFiles
from pagoda.weights.checkpoint import TensorInfo

Scaled = tuple[AdapterFiles, float]
"""An adapter, and what all of it is multiplied with."""


class ModelAdapters:
    """Slots beside each linear layer of the language model, and beside the experts' where the room
    has them; routers, draft heads and output heads are left out. A slot holds an adapter, or
    several whose sum is one: their ranks add up."""

    def __init__(self, model: Model, room: ResolvedAdapters, *, of_gguf: bool):
        """Takes the memory of all slots. `of_gguf`: as `AdaptedWeights` has it."""
        self._room = room
        self._stage = model.spec.stage
        whole = model.spec if self._stage is None else self._stage.whole
        self._weights = AdaptedWeights(whole, of_gguf)
        layers = {path: x for path, x in model.named_modules() if path.startswith("layers.")}
        self._layers: dict[str, Linear] = {
            f"{path}.weight": layer
            for path, layer in layers.items()
            if isinstance(layer, Linear) and not isinstance(layer, Router)
        }
        self._mixtures: dict[str, MixtureOfExperts] = {
            path: layer
            for path, layer in layers.items()
            if room.experts and isinstance(layer, MixtureOfExperts)
        }
        self._adapted: dict[str, Linear | ExpertMatrices] = dict(self._layers)
        for path, mixture in self._mixtures.items():
            self._adapted[f"{path}.gate_up.weight"] = mixture.gate_up
            self._adapted[f"{path}.down.weight"] = mixture.down
        for layer in self._adapted.values():
            layer.make_room(room.slots, room.max_rank, getattr(torch, room.dtype))

    @torch.inference_mode()
    def load(self, slot: int, adapters: Sequence[Scaled]) -> None:
        """Replace what the slot holds. An adapter that does not fit raises before anything changes:
        CheckpointError, UnsupportedModelError for what is not served, ConfigError where its rank is
        too large."""
        parts: defaultdict[str, list[ShardAdapter]] = defaultdict(list)
        for files, scale in adapters:
            for param, found in self._parts(files, scale, parts).items():
                parts[param] += found
        for param, layer in self._adapted.items():
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
            if rank > self._room.max_rank:
                raise ConfigError(
                    f"The adapter {files.path} needs a rank of {rank}, and {self._room.max_rank} "
                    f"is the most; start the server with --max-lora-rank {rank}."
                )
            found[each.param] += each.shards(files, scale, first)
            places = {(part.shard, part.expert) for part in found[each.param]}
            if len(places) < len(found[each.param]):
                raise CheckpointError(
                    f"The adapter {files.path} has two modules for one weight, the second being "
                    f"{ascii(each.name)[1:-1]}."
                )
        return found

    def _modules(self, files: AdapterFiles) -> Iterator["_Adapted | AdaptedExperts"]:
        yield from turned_around(files, list(self._of_experts(files)))
        for name, module in files.modules.items():
            if self._mixture(name, files) is not None:
                continue
            source, rule = self._weights.find(name, files.kind)
            own = self._own(rule.param)
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

    def _own(self, path: str) -> str | None:
        """What something of the whole model is called here; None where another stage has it."""
        return path if self._stage is None else self._stage.own(path)

    def _mixture(self, name: str, files: AdapterFiles) -> str | None:
        """Where the whole model has the experts of a module; None where it is no expert's."""
        place = expert_module(name)
        return None if place is None else self._weights.mixture(place, files.kind)

    def _of_experts(self, files: AdapterFiles) -> Iterator[AdaptedExperts]:
        for name, module in files.modules.items():
            place, whole = expert_module(name), self._mixture(name, files)
            path = None if whole is None else self._own(whole)
            if place is None or path is None:
                continue
            if path not in self._mixtures:
                raise UnsupportedModelError(
                    f"Its module {ascii(name)[1:-1]} is an expert's, and there is no room for "
                    "those; start the server with --lora-experts."
                )
            interleaved = self._weights.interleaves(files.kind)
            yield AdaptedExperts(name, module, place, path, self._mixtures[path], interleaved)


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
        a, b = (decoded(files, info) for info in (self.module.a, self.module.b))
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
