"""Which weights stay in the host's memory where a GPU's is too small for all of them.

Experts first: they are large, and a token reads few of them. Then all matrices of whole layers.
Both from the last layer up. Tables, heads, routers, norms, biases and towers stay on the device.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.arch.spec import ModelSpec
from pagoda.planner.memory.tensors import ModelTensor
from pagoda.planner.memory.weights import HeldWeight


@dataclass(frozen=True)
class Placement:
    """What lies in the host's memory."""

    experts: int = 0
    """Layers whose experts do, whole layers included."""
    layers: int = 0
    """Layers of which every matrix does."""
    params: frozenset[str] = frozenset()
    """Their names, as weight rules have them."""
    nbytes: int = 0
    """Bytes of one device's share."""
    staging: int = 0
    """Bytes on the device for those that are there at once, on their way through."""


ON_DEVICE = Placement()


def placements(spec: ModelSpec) -> list[tuple[int, int]]:
    """Layers whose experts are in the host's memory, and layers that are whole; from none to all,
    each a layer more than the one before it."""
    sparse = sum(layer.experts is not None for layer in spec.layers)
    experts = [(count, 0) for count in range(sparse + 1)]
    return experts + [(sparse, count) for count in range(1, len(spec.layers) + 1)]


def placed(spec: ModelSpec, held: Sequence[HeldWeight], experts: int, layers: int) -> Placement:
    """With the experts of the last `experts` layers that have any, and the last `layers` whole, as
    far as there are so many; `held` is what one device would hold."""
    first = max(0, len(spec.layers) - layers)
    with_experts = [i for i, layer in enumerate(spec.layers) if layer.experts is not None]
    sparse = {i for i in with_experts if i >= first}
    sparse.update(with_experts[max(0, len(with_experts) - experts) :])
    params: set[str] = set()
    total = 0.0
    at_once: defaultdict[str, float] = defaultdict(float)
    for part in held:
        tensor = part.tensor
        if not _moves(tensor, sparse, first):
            continue
        params.add(tensor.name)
        total += part.nbytes
        # A layer's experts are computed in one go.
        at_once[f"{tensor.layer}" if tensor.role == "experts" else tensor.name] += part.nbytes
    staging = round(max(at_once.values(), default=0.0))
    count = len(spec.layers) - first
    return Placement(len(sparse), count, frozenset(params), round(total), staging)


def _moves(tensor: ModelTensor, sparse: set[int], first: int) -> bool:
    if tensor.layer is None or not tensor.is_matrix:
        return False
    if tensor.role == "experts":
        return tensor.layer in sparse
    return tensor.role == "linear" and tensor.layer >= first
