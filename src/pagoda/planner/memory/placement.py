"""Which weights are elsewhere where a device's memory is too small for all of them: of a GPU in the
host's memory, of a CPU on disk.

Experts first: they are large, and a token reads few of them. Then, of a GPU alone, all matrices of
whole layers. A GPU's are from the last layer up, a CPU's far apart. Tables, heads, routers, norms,
biases and towers stay on the device.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.arch.spec import ModelSpec
from pagoda.planner.devices.speed import token_share
from pagoda.planner.memory.tensor import ModelTensor
from pagoda.planner.memory.weights import HeldWeight


@dataclass(frozen=True)
class Placement:
    """What lies elsewhere."""

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
    token_bytes: int = 0
    """Bytes of them that one token's step reads."""


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
    with_experts = _with_experts(spec)
    sparse = {i for i in with_experts if i >= first}
    sparse.update(with_experts[max(0, len(with_experts) - experts) :])
    return _placement(spec, held, sparse, first)


def spread(spec: ModelSpec, held: Sequence[HeldWeight], experts: int) -> Placement:
    """With the experts of `experts` layers, as far as there are so many: the last one's, and then
    each as far from the others as can be, so that layers between them compute while the next one's
    are read. More layers are those of fewer and others."""
    last_first = _with_experts(spec)[::-1]
    bits = len(last_first).bit_length()
    # Numbers by their bits in reverse: each falls into the largest gap between those before it.
    order = sorted(range(len(last_first)), key=lambda i: f"{i:0{bits}b}"[::-1])
    return _placement(spec, held, {last_first[i] for i in order[:experts]}, len(spec.layers))


def _with_experts(spec: ModelSpec) -> list[int]:
    return [i for i, layer in enumerate(spec.layers) if layer.experts is not None]


def _placement(
    spec: ModelSpec, held: Sequence[HeldWeight], sparse: set[int], first: int
) -> Placement:
    """Experts of the layers `sparse`, and all matrices from layer `first` on, are elsewhere."""
    params: set[str] = set()
    total = of_token = 0.0
    at_once: defaultdict[str, float] = defaultdict(float)
    for part in held:
        tensor = part.tensor
        if not _moves(tensor, sparse, first):
            continue
        params.add(tensor.name)
        total += part.nbytes
        of_token += part.nbytes * token_share(spec, part)
        # A layer's experts are computed in one go.
        at_once[f"{tensor.layer}" if tensor.role == "experts" else tensor.name] += part.nbytes
    staging = round(max(at_once.values(), default=0.0))
    count = len(spec.layers) - first
    return Placement(len(sparse), count, frozenset(params), round(total), staging, round(of_token))


def _moves(tensor: ModelTensor, sparse: set[int], first: int) -> bool:
    if tensor.layer is None or not tensor.is_matrix:
        return False
    if tensor.role == "experts":
        return tensor.layer in sparse
    return tensor.role == "linear" and tensor.layer >= first
