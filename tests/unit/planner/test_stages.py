"""Where a pipeline's stages begin, and what the largest of them takes."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.arch.latent import IndexerSpec, LatentSpec
from pagoda.arch.recurrent import ShortConvSpec
from pagoda.arch.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec, RopeSpec
from pagoda.arch.stage import stage_of
from pagoda.base.errors import ConfigError
from pagoda.base.facts import DeviceFacts
from pagoda.core.kvcache.spec import KVLayout, kv_groups
from pagoda.planner.memory.tensors import parameter_count
from pagoda.planner.resolve import Resolution, resolve
from pagoda.planner.stages import cut_places, even_cuts
from tests.unit.planner.test_resolve import configure, machine, smollm2

FULL = AttentionSpec("full", 8, 4, 64, 0.125, RopeSpec(1e5, 64))
SLIDING = replace(FULL, kind="sliding", window=128)
DENSE = LayerSpec(FULL, MlpSpec(1024))
MIXED = LayerSpec(FULL, None, MoeSpec(16, 2, 512))


def model(*layers: LayerSpec, **changes) -> ModelSpec:
    return replace(smollm2(), layers=layers, **changes)


def resolved(spec: ModelSpec, stages: int, **config) -> Resolution:
    parallel = {"pipeline_parallel_size": stages}
    return resolve(configure(parallel=parallel, **config), spec, {}, machine())


def counts(cuts: tuple[int, ...]) -> list[int]:
    return [stop - first for first, stop in itertools.pairwise(cuts)]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=2, max_size=9),
    st.integers(2, 4),
    st.randoms(use_true_random=False),
)
def test_no_other_cuts_have_a_smaller_largest_stage(nbytes, stages, chance):
    places = [place for place in range(1, len(nbytes)) if chance.random() < 0.8]
    if len(places) < stages - 1:
        return

    def largest(cuts: tuple[int, ...]) -> int:
        return max(sum(nbytes[first:stop]) for first, stop in itertools.pairwise(cuts))

    found = even_cuts(nbytes, places, stages)
    every = [(0, *cuts, len(nbytes)) for cuts in itertools.combinations(places, stages - 1)]
    assert found in every
    assert largest(found) == min(map(largest, every))


def test_like_layers_are_dealt_out_alike():
    """But for the table, whose bytes stand for layers at both ends."""
    assert counts(resolved(smollm2(), 1).cuts) == []
    found = counts(resolved(smollm2(), 3).cuts)
    assert sum(found) == 30 and found[1] > max(found[0], found[2])


def test_dense_layers_before_mixtures():
    """One mixture here has as many bytes as several dense layers."""
    spec = model(*[DENSE] * 12, *[MIXED] * 6, vocab_size=64)
    first, second = counts(resolved(spec, 2).cuts)
    assert first > 12 and second < 6


def test_hybrids_and_windows():
    """What a layer keeps counts too: states and windows do not grow with the context."""
    recurrent = LayerSpec(ShortConvSpec(576, 3), MlpSpec(1024))
    for kind in (recurrent, LayerSpec(SLIDING, MlpSpec(1024))):
        spec = model(*[kind] * 10, *[DENSE] * 10, vocab_size=64, max_position=1 << 20)
        short = counts(resolved(spec, 2, model={"max_model_len": 256}).cuts)
        long = counts(resolved(spec, 2, model={"max_model_len": 200_000}).cuts)
        assert long[0] > short[0] >= 9


def test_layers_stay_with_those_that_they_read():
    borrowing = replace(DENSE, mixer=replace(FULL, borrows=2))
    assert cut_places(model(DENSE, DENSE, DENSE, DENSE, borrowing, DENSE)) == [1, 2, 5]
    latent = LatentSpec(32, 16, 16, 8, query_rank=32, indexer=IndexerSpec(2, 8, 4))
    own = replace(DENSE, mixer=replace(FULL, latent=latent))
    taken = replace(latent, indexer=replace(latent.indexer, own=False))
    taking = replace(DENSE, mixer=replace(FULL, latent=taken))
    assert cut_places(model(own, taking, taking, own, taking, own)) == [3, 5]
    with pytest.raises(ConfigError, match="it can have 2 stages at most"):
        resolved(model(DENSE, *[replace(DENSE, mixer=replace(FULL, borrows=1))] * 3, DENSE), 3)
    with pytest.raises(ConfigError, match="more than the model's 2 layers"):
        resolved(model(DENSE, DENSE), 3)


def test_stages_are_the_whole_model():
    for tied in (True, False):
        spec = replace(smollm2(), tie_word_embeddings=tied)
        parts = [stage_of(spec, (0, 7, 19, 30), index) for index in range(3)]
        table = spec.vocab_size * spec.hidden_size
        assert sum(map(parameter_count, parts)) == parameter_count(spec) + tied * table
    assert [part.begins for part in parts] == [True, False, False]
    assert [part.ends for part in parts] == [False, False, True]


def test_blocks_are_as_large_in_every_stage():
    """So that all share slabs in one way; a stage may have no layer of a group."""
    sliding = LayerSpec(SLIDING, MlpSpec(1024))
    spec = model(*[sliding] * 4, *[DENSE] * 3)
    parts = [stage_of(spec, (0, 3, 7), index) for index in range(2)]
    first, second = (kv_groups(part, KVLayout()) for part in parts)
    assert [group.layers for group in first] == [(0, 1, 2), ()]
    assert [group.layers for group in second] == [(0,), (1, 2, 3)]
    assert [g.block_bytes for g in first] == [g.block_bytes for g in second]
    whole = kv_groups(spec, KVLayout())
    assert [3 * g.block_bytes // len(g.layers) for g in whole] == [g.block_bytes for g in first]


def test_offloading_is_for_whole_models():
    facts = DeviceFacts("cuda", total_memory=24 << 30, free_memory=24 << 30, num_threads=8)
    config = configure(parallel={"pipeline_parallel_size": 2}, device={"cpu_offload_gb": 1.0})
    with pytest.raises(ConfigError, match="--cpu-offload-gb: the stages of a pipeline keep"):
        resolve(config, smollm2(), {}, facts)
