"""What an adapter says of a mixture's experts, expert by expert, however its file has them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from pagoda.arch.adapters import ExpertModule
from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.kernels import ops
from pagoda.layers.adapters import ShardAdapter
from pagoda.layers.moe import MixtureOfExperts
from pagoda.weights.adapters import AdaptedModule, AdapterFiles
from pagoda.weights.checkpoint import TensorInfo


@dataclass(frozen=True)
class AdaptedExperts:
    """A module of an adapter that stands beside one expert or all of them."""

    name: str
    module: AdaptedModule
    place: ExpertModule
    path: str
    """Where the mixture is in the model."""
    mixture: MixtureOfExperts
    interleaved: bool
    """Rows of gate and up take turns."""
    turned: bool = False
    """A has the expert's outputs, and B its inputs."""

    @property
    def param(self) -> str:
        return f"{self.path}.{'down' if 'down' in self.place.parts else 'gate_up'}.weight"

    @property
    def sizes(self) -> tuple[int, int]:
        """(rows, columns) of the matrix of an expert that the module is for."""
        sizes = (self.mixture.down if "down" in self.place.parts else self.mixture.gate_up).sizes
        return sizes.rows * len(self.place.parts), sizes.columns

    def shards(self, files: AdapterFiles, scale: float, first: int) -> Iterator[ShardAdapter]:
        """For each matrix of each expert that this rank holds, what is added beside it."""
        every_a, every_b = self._factors(files)
        held, count = self.mixture.held, self.mixture.spec.num_experts
        (one, *_), expert = every_a.shape, self.place.expert
        known = one == count if expert is None else one == 1 and expert < count
        shape = (every_b.shape[1], every_a.shape[2])
        if not known or shape != self.sizes:
            many = "" if expert is not None else f"{one} experts with "
            raise CheckpointError(
                f"The adapter {files.path} is of another model: {ascii(self.name)[1:-1]} is for "
                f"{many}a weight of {list(shape)}; this model has {count} experts with "
                f"{list(self.sizes)}."
            )
        every_b = every_b * (scale * self.module.scale)
        for index in range(held.start, held.stop) if expert is None else (expert,):
            if index not in range(held.start, held.stop):
                continue
            at = index if expert is None else 0
            a, b, parts = every_a[at], every_b[at], len(self.place.parts)
            for part, name in enumerate(self.place.parts):
                rows = b[part::parts] if self.interleaved else b.chunk(parts)[part]
                shard = int(name == "up" and self.mixture.spec.gated)
                yield ShardAdapter(shard, first, a, rows, index - held.start)

    def _factors(self, files: AdapterFiles) -> tuple[torch.Tensor, torch.Tensor]:
        """A [experts, rank, in] and B [experts, out, rank]; of one expert, one."""
        a, b = (decoded(files, info) for info in (self.module.a, self.module.b))
        count = self.module.experts
        if not count:
            return a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])
        # peft, tuners/lora/layer.py, ParamWrapper.get_delta_weight: the rank is the first of the
        # two in A's rows, and the second in B's columns.
        a, b = a.unflatten(0, (count, -1)), b.unflatten(1, (-1, count)).permute(2, 0, 1)
        return (b.transpose(1, 2), a.transpose(1, 2)) if self.turned else (a, b)


def turned_around(files: AdapterFiles, modules: Sequence[AdaptedExperts]) -> list[AdaptedExperts]:
    """The modules, each with `turned` set. Of a parameter [experts, out, in] peft before 0.19 gave
    A the outputs and B the inputs, and so it still does where it takes another one for such.
    Shapes say which it is, for all modules of an adapter alike; UnsupportedModelError where they
    do not."""
    folded = {each.name for each in modules if each.module.experts}
    fits = {
        ((a, b) == (columns, rows), (a, b) == (rows, columns))
        for each in modules
        if each.name in folded
        for (rows, columns), a, b in [(each.sizes, each.module.a.shape[1], each.module.b.shape[0])]
    }
    if fits == {(True, True)}:
        raise UnsupportedModelError(
            f"Its module {ascii(min(folded))[1:-1]} is for a square weight, of which no shape says "
            "on which side A stands; merge the adapter into the checkpoint and serve that."
        )
    turned = (False, True) in fits
    return [replace(each, turned=turned and each.name in folded) for each in modules]


def decoded(files: AdapterFiles, info: TensorInfo) -> torch.Tensor:
    """fp32, of the tensor's shape."""
    raw = torch.from_numpy(files.checkpoint.read(info.name).copy())
    out = ops.dequantize(raw, info.type)
    if not out.isfinite().all():
        raise CheckpointError(
            f"The adapter {files.path} has numbers in {info.name} that are not finite."
        )
    return out.view(info.shape)
