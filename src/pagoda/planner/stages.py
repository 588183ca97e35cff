"""Which layers each stage of a pipeline has: contiguous ones, as many bytes as any other stage."""

from collections.abc import Sequence
from itertools import accumulate

from pagoda.arch.spec import AttentionSpec, LayerSpec, ModelSpec
from pagoda.arch.stage import StageSpec
from pagoda.base.errors import ConfigError
from pagoda.config.engine import EngineConfig
from pagoda.core.kvcache.layout import blocks_required
from pagoda.core.kvcache.spec import GroupSpec
from pagoda.planner.memory.weights import HeldWeight


def check_stages(config: EngineConfig, spec: ModelSpec) -> None:
    """ConfigError for what a pipeline cannot do, and for more stages than the layers allow."""
    stages = config.parallel.pipeline_parallel_size
    if stages == 1:
        return
    flag = f"--pipeline-parallel-size {stages}"
    if spec.heard:
        raise ConfigError(
            f"{flag}: models that write down sounds run on one device here; leave the flag out."
        )
    if len(spec.layers) < stages:
        raise ConfigError(f"{flag} is more than the model's {len(spec.layers)} layers.")
    places = cut_places(spec)
    if len(places) < stages - 1:
        raise ConfigError(
            f"{flag}: layers of this model read what earlier ones keep, and stand in one stage "
            f"with them; it can have {len(places) + 1} stages at most."
        )


def cut_places(spec: ModelSpec) -> list[int]:
    """The layers with which a stage behind the first may begin: nothing from there on reads keys,
    values or choices of tokens of a layer before. What a picture adds to the first layers stays in
    the first stage."""
    deepstack = () if spec.vision is None else spec.vision.deepstack
    places = set(range(max(1, len(deepstack)), len(spec.layers)))
    chosen_by = 0
    for index, layer in enumerate(spec.layers):
        mixer = layer.mixer
        if not isinstance(mixer, AttentionSpec):
            continue
        if mixer.borrows:
            places -= set(range(index - mixer.borrows + 1, index + 1))
        if _chooses(layer):
            chosen_by = index
        elif mixer.latent is not None and mixer.latent.indexer is not None:
            places -= set(range(chosen_by + 1, index + 1))
    return sorted(places)


def _chooses(layer: LayerSpec) -> bool:
    """Whether it has an indexer of its own."""
    mixer = layer.mixer
    if not isinstance(mixer, AttentionSpec) or mixer.latent is None:
        return False
    return mixer.latent.indexer is not None and mixer.latent.indexer.own


def layer_bytes(
    spec: ModelSpec,
    held: Sequence[HeldWeight],
    groups: Sequence[GroupSpec],
    num_tokens: int,
    max_chunk: int,
) -> list[float]:
    """Bytes of each layer of the whole model on one device: its weights, and what it keeps of a
    request of `num_tokens` that is computed `max_chunk` a step. What is computed before the layers
    counts as the first one's, what follows them as the last one's."""
    count = len(spec.layers)
    ends = [StageSpec(index, (0, 1, count), spec) for index in range(2)]
    nbytes = [0.0] * count
    for part in held:
        layer = part.tensor.layer
        if layer is not None:
            nbytes[layer] += part.nbytes
            continue
        for stage, place in zip(ends, (0, -1), strict=True):
            if stage.own(part.tensor.name) is not None:
                nbytes[place] += part.nbytes
    required = blocks_required(groups, num_tokens, max_chunk)
    for group, blocks in zip(groups, required, strict=True):
        for layer in group.layers:
            nbytes[layer] += blocks * sum(group.part_bytes)
    return nbytes


def even_cuts(nbytes: Sequence[float], places: Sequence[int], stages: int) -> tuple[int, ...]:
    """The first layer of each stage, and the number of all: where layers take so many bytes, and
    stages may begin at `places` only, the largest stage is as small as can be. There are enough
    places."""
    ends = [0, *accumulate(nbytes)]
    # By the layers that they have together: the largest of the stages so far, and their cuts.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, (0,))}
    for stage in range(1, stages + 1):
        stops = [len(nbytes)] if stage == stages else places
        best = {
            stop: min(
                (max(most, ends[stop] - ends[first]), (*cuts, stop))
                for first, (most, cuts) in best.items()
                if first < stop
            )
            for stop in stops
            if any(first < stop for first in best)
        }
    return best[len(nbytes)][1]
