"""Stages of a model, one behind the other, give transformers' logits, whatever the architecture."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.arch.stage import stage_of
from pagoda.layers.context import Parallel
from pagoda.planner.memory.weights import weight_bytes
from pagoda.planner.stages import cut_places
from pagoda.weights.files import open_model
from tests.models import encoders, tiny
from tests.models.driver import Driver
from tests.models.gloo_ranks import on_ranks
from tests.models.test_rank_families import FAMILIES

IDS = tiny.random_ids(30)
ALL = {**FAMILIES, "gemma3n": tiny.GEMMA3N}


class Stages:
    """Drives them, each with a cache of its own."""

    def __init__(self, folder: Path, cuts: tuple[int, ...], parallel: Parallel | None = None):
        models = [
            tiny.load(folder, cuts=cuts, stage=index, parallel=parallel)
            for index in range(len(cuts) - 1)
        ]
        self.drivers = [Driver(model, seed=place) for place, model in enumerate(models)]

    @torch.inference_mode()
    def step(self, tokens: dict[str, list[int]]) -> dict[str, torch.Tensor]:
        """As `Driver.step`."""
        carried = None
        for driver in self.drivers:
            batch = driver._batch(tokens)
            batch.carried = carried
            carried = driver.model(batch)
            spec = driver.model.spec
            if not spec.ends:
                assert carried.dtype == torch.float32
        logits = self.drivers[-1].model.compute_logits(carried)
        return dict(zip(tokens, logits.split([len(ids) for ids in tokens.values()]), strict=True))

    def run(self, ids: Sequence[int], chunk: int, req: str = "r") -> torch.Tensor:
        pieces = [list(ids[i : i + chunk]) for i in range(0, len(ids), chunk)]
        return torch.cat([self.step({req: piece})[req] for piece in pieces])


def places_of(folder: Path) -> tuple[list[int], int]:
    """Where the model of a folder may be cut, and its layers."""
    files = open_model(folder)
    spec = spec_for(files.config, {}, files.checkpoint.tensors)
    return cut_places(spec), len(spec.layers)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_families(family: str, tmp_path: Path):
    """Whole, in chunks, and beside another request; cut in one place, and in as many as can be."""
    reference = tiny.make(family, **ALL[family])
    reference.save_pretrained(tmp_path)
    expected = tiny.reference_logits(reference, IDS)
    places, count = places_of(tmp_path)
    assert places, "it can be cut"
    for cuts in {(0, places[0], count), (0, *places, count)}:
        stages = Stages(tmp_path, cuts)
        for chunk in (30, 9):
            logits = stages.run(IDS, chunk, f"chunks of {chunk}")
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
        both = stages.step({"one": IDS, "other": IDS[:11]})
        torch.testing.assert_close(both["one"], expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(both["other"], expected[:11], rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma3n", "gemma4_e", "qwen3_5_moe", "deepseek_v3"])
def test_their_bytes_are_planned(family: str, tmp_path: Path):
    tiny.make(family, **ALL[family]).save_pretrained(tmp_path)
    files = open_model(tmp_path)
    tensors = files.checkpoint.tensors
    spec = spec_for(files.config, {}, tensors)
    cuts = (0, cut_places(spec)[0], len(spec.layers))
    for index in range(2):
        own, model = stage_of(spec, cuts, index), tiny.load(tmp_path, cuts=cuts, stage=index)
        assert weight_bytes(own, tensors, "float32", frozenset()) == model.nbytes


@pytest.mark.parametrize("family", ["llama", "qwen3_5_moe", "gemma3"])
def test_stages_whose_layers_are_split_too(family: str, tmp_path: Path):
    reference = tiny.make(family, **ALL[family])
    reference.save_pretrained(tmp_path)
    expected = tiny.reference_logits(reference, IDS)
    places, count = places_of(tmp_path)

    def run(parallel: Parallel) -> torch.Tensor:
        return Stages(tmp_path, (0, places[-1], count), parallel).run(IDS, chunk=9)

    for logits in on_ranks(2, run):
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", encoders.FAMILIES)
def test_encoders(family: str, tmp_path: Path):
    changes = {"num_labels": 3} if "classifier" in family else {}
    reference = encoders.make(family, **changes)
    reference.save_pretrained(tmp_path)
    ids = [2 + token % 209 for token in IDS]
    _, count = places_of(tmp_path)
    carried = None
    for index in range(3):
        model = tiny.load(tmp_path, cuts=(0, 1, 2, count), stage=index)
        (carried,) = encoders.hidden_states(model, [ids], carried=carried)
    with torch.inference_mode():
        found = reference(torch.tensor([ids]))
        expected = found.logits[0] if changes else found.last_hidden_state[0]
        states = model.classify(carried[:1])[0] if changes else carried
    torch.testing.assert_close(states, expected, rtol=0, atol=1e-4)
