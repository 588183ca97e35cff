"""Qwen2-Audio equal to transformers' on a tiny random checkpoint and synthetic sounds."""

import numpy as np
import pytest
import torch

from pagoda.kernels import ops
from pagoda.planner.memory.tensors import model_tensors, parameter_count
from pagoda.runtime.media import RequestMedia, finish
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model
from tests.models import sound, tiny
from tests.models.test_qwen3_vl import close, words

SECONDS = [1.0, 0.4, 0.333, 0.03]
"""A whole window, whole frames, part of one, and the shortest sound."""


@pytest.fixture(scope="module")
def reference():
    return sound.qwen2_audio()


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen2audio")
    sound.save(reference, folder)
    return folder


@pytest.fixture(scope="module")
def processor(folder):
    return processor_for(open_model(folder), "audio")


@pytest.fixture(scope="module")
def model(folder):
    return tiny.load(folder)


def prompt(samples, processor, folder):
    """(ids, items): text around each sound."""
    ids, items = words(9, 1), []
    for number, one in enumerate(samples):
        piece = sound.heard(processor, one)
        ids += [200]
        items.append(sound.placed(piece, len(ids), folder))
        ids += [sound.SOUND] * piece.num_tokens + [202, *words(5, 2 + number)]
    return ids, items


@torch.inference_mode()
def expected(reference, ids, samples):
    every = [sound.extracted(one) for one in samples]
    inputs = {name: torch.cat([one[name] for one in every]) for name in every[0]}
    return reference(torch.tensor([ids]), **inputs).logits[0]


@pytest.mark.parametrize("seconds", SECONDS)
def test_the_encoder_equals_transformers(seconds, reference, processor, model):
    samples = sound.sound(seconds)
    theirs = sound.extracted(samples)
    piece = sound.heard(processor, samples)
    frames = int(theirs["feature_attention_mask"].sum())
    np.testing.assert_allclose(
        piece.values[:frames], theirs["input_features"][0, :, :frames].T, rtol=0, atol=1e-5
    )
    with torch.inference_mode():
        seen = torch.arange(50) < (frames - 1) // 2 + 1
        mask = seen.expand(1, 1, 50, 50)
        tower, projector = reference.model.audio_tower, reference.model.multi_modal_projector
        outputs = tower(theirs["input_features"], attention_mask=mask).last_hidden_state
        found = finish(model.encoders["audio"](*_tensors(processor, piece)))
        close(found[0], projector(outputs)[0, : piece.num_tokens])


def _tensors(processor, piece):
    values, grid = processor.patches(piece.values)
    return torch.from_numpy(values), grid


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
    assert driver.encoder.num_encoded == len(samples)


def test_planned_parameters_are_those_of_the_checkpoint(reference, model):
    # The biases of keys are kept as zeros.
    zeros = sound.TOWER["encoder_layers"] * sound.TOWER["d_model"]
    theirs = sum(p.numel() for p in reference.parameters())
    assert parameter_count(model.spec) == theirs + zeros
    assert model.nbytes == 4 * parameter_count(model.spec)
    names = [tensor.name for tensor in model_tensors(model.spec)]
    assert sorted(names) == sorted(rule.param for rule in model.spec.expanded_weights())
