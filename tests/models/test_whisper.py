"""Whisper equal to transformers' on a tiny random checkpoint and synthetic sounds."""

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from pagoda.kernels import ops
from pagoda.planner.memory.tensors import model_tensors, parameter_count
from pagoda.runtime.media import RequestMedia, finish
from pagoda.text.media.select import processor_for
from pagoda.text.sounds.mel import log_mel
from pagoda.weights.files import open_model
from tests.models import sound, tiny
from tests.models.test_qwen3_vl import close, words


@pytest.fixture(scope="module")
def reference():
    return sound.whisper()


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whisper")
    sound.save(reference, folder)
    return folder


@pytest.fixture(scope="module")
def processor(folder):
    return processor_for(open_model(folder), "audio")


@pytest.fixture(scope="module")
def model(folder):
    return tiny.load(folder)


@torch.inference_mode()
def expected(reference, samples, ids):
    """fp32 [len(ids), vocab] of the text behind a sound."""
    features = sound.extracted(samples)["input_features"]
    return reference(features, decoder_input_ids=torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("num_mels", [80, 128])
@pytest.mark.parametrize("seconds", [30.0, 29.997, 3.005])
def test_spectrograms_are_those_of_transformers(seconds, num_mels):
    samples = sound.sound(seconds)
    theirs = WhisperFeatureExtractor(feature_size=num_mels)(samples, sampling_rate=sound.RATE)
    found = log_mel(samples, num_mels, 3000)
    np.testing.assert_allclose(found, theirs["input_features"][0].T, rtol=0, atol=1e-4)


@pytest.mark.parametrize("seconds", [1.0, 0.3])
def test_the_encoder_equals_transformers(seconds, reference, processor, model):
    samples = sound.sound(seconds)
    values, grid = processor.patches(sound.heard(processor, samples).values)
    with torch.inference_mode():
        found = finish(model.encoders["audio"](torch.from_numpy(values), grid))
        outputs = reference.model.encoder(sound.extracted(samples)["input_features"])
    close(found[0], outputs.last_hidden_state[0])


@pytest.mark.parametrize("packed", [False, True])
def test_logits_equal_in_chunks_and_batches(packed, reference, folder, processor, tmp_path):
    if packed and not ops.can_pack("cpu"):
        pytest.skip("no native kernels")
    driver = sound.HearingDriver(tiny.load(folder, packed=packed), processor)
    samples = {"whole": sound.sound(1.0, 1), "part": sound.sound(0.4, 2)}
    texts = {"whole": words(40, 3), "part": words(17, 4)}
    wanted = {name: expected(reference, samples[name], texts[name]) for name in samples}
    prompts = {}
    for name, one in samples.items():
        prompts[name] = [0] * sound.HEARD + texts[name]
        item = sound.placed(sound.heard(processor, one), 0, tmp_path)
        driver.media[name] = RequestMedia([item], len(prompts[name]))
    # One in chunks, of which the other's sound joins some.
    first, second = prompts["whole"], prompts["part"]
    driver.step({"whole": first[:33]})
    mixed = driver.step({"whole": first[33:54], "part": second[:41]})["whole"][17:]
    both = driver.step({"whole": first[54:61], "part": second[41:]})
    last = torch.cat([driver.step({"whole": [token]})["whole"] for token in first[61:]])
    close(torch.cat([mixed, both["whole"], last]), wanted["whole"])
    close(both["part"][9:], wanted["part"])


def test_planned_parameters_are_those_of_the_checkpoint(reference, model):
    # The biases of keys are kept as zeros, and so are places of text where there is sound.
    layers = sound.TOWER["encoder_layers"] + 2 * sound.DECODER["decoder_layers"]
    zeros = (layers + sound.HEARD) * sound.TOWER["d_model"]
    assert parameter_count(model.spec) == sum(p.numel() for p in reference.parameters()) + zeros
    assert model.nbytes == 4 * parameter_count(model.spec)
    names = [tensor.name for tensor in model_tensors(model.spec)]
    assert sorted(names) == sorted(rule.param for rule in model.spec.expanded_weights())
