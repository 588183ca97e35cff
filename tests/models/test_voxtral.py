"""Voxtral equal to transformers' on a tiny random checkpoint and synthetic sounds."""

import numpy as np
import pytest
import torch

from pagoda.arch.families.voxtral import from_config
from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.kernels import ops
from pagoda.planner.memory.tensors import model_tensors, parameter_count
from pagoda.runtime.media import RequestMedia
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model
from tests.models import sound, tiny
from tests.models.test_qwen3_vl import close, words

SECONDS = [0.4, 2.0, 3.3]
"""Part of a window, all of one, and two of them."""


@pytest.fixture(scope="module")
def reference():
    return sound.voxtral()


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("voxtral")
    sound.save(reference, folder, sound.VOXTRAL_EXTRACTOR)
    return folder


@pytest.fixture(scope="module")
def processor(folder):
    return processor_for(open_model(folder), "audio")


def prompt(samples, processor, folder):
    """(ids, items): text around each sound."""
    ids, items = words(9, 1), []
    for number, one in enumerate(samples):
        medium = processor.process(one)
        assert medium.text == processor.token * len(medium.pieces)
        ids += [200]
        for piece in medium.pieces:
            assert piece.num_tokens == sound.VOXTRAL_WINDOW
            items.append(sound.placed(piece, len(ids), folder))
            ids += [sound.SOUND] * piece.num_tokens
        ids += [202, *words(5, 2 + number)]
    return ids, items


@torch.inference_mode()
def expected(reference, ids, samples):
    features = torch.cat([sound.voxtral_features(one) for one in samples])
    return reference(torch.tensor([ids]), input_features=features).logits[0]


@pytest.mark.parametrize("seconds", SECONDS)
def test_windows_are_those_of_transformers(seconds, processor):
    samples = sound.sound(seconds)
    theirs = sound.voxtral_features(samples)
    pieces = processor.process(samples).pieces
    assert len(pieces) == len(theirs)
    for piece, wanted in zip(pieces, theirs, strict=True):
        np.testing.assert_allclose(piece.values[:-2], wanted.T, rtol=0, atol=1e-5)
        assert not piece.values[-2:].any()


@pytest.mark.parametrize("packed", [False, True])
def test_logits_equal_in_chunks_and_batches(packed, reference, folder, processor, tmp_path):
    if packed and not ops.can_pack("cpu"):
        pytest.skip("no native kernels")
    samples = [sound.sound(seconds, seed) for seed, seconds in enumerate(SECONDS)]
    driver = sound.HearingDriver(tiny.load(folder, packed=packed), processor)
    prompts = {"one": samples[:1], "all": samples, "none": []}
    made = {name: prompt(each, processor, tmp_path) for name, each in prompts.items()}
    for name, (ids, items) in made.items():
        if items:
            driver.media[name] = RequestMedia(items, len(ids))
    close(driver.run(made["all"][0], 7, "all"), expected(reference, made["all"][0], samples))
    together = driver.step({name: made[name][0] for name in ("one", "none")})
    close(together["one"], expected(reference, made["one"][0], samples[:1]))
    close(together["none"], tiny.reference_logits(reference, made["none"][0]))


def test_planned_parameters_are_those_of_the_checkpoint(reference, folder):
    model = tiny.load(folder)
    # The biases of keys are kept as zeros.
    theirs = sum(p.numel() for p in reference.parameters())
    assert parameter_count(model.spec) == theirs + 2 * 32
    assert model.nbytes == 4 * parameter_count(model.spec)
    names = [tensor.name for tensor in model_tensors(model.spec)]
    assert sorted(names) == sorted(rule.param for rule in model.spec.expanded_weights())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"text_config": {"model_type": "gemma3_text"}}, "text_config.model_type is 'gemma3_text'"),
        ({"projector_hidden_act": "relu"}, "projector_hidden_act must be gelu"),
        ({"audio_config": {"intermediate_size": 5000}}, "intermediate_size is 5000"),
        ({"audio_config": {"max_source_positions": 1502}}, "no whole number of outputs"),
    ],
)
def test_others_are_refused(changes, told):
    assert from_config({}).audio.stacked == 4
    with pytest.raises((UnsupportedModelError, CheckpointError), match=told):
        from_config(changes)
