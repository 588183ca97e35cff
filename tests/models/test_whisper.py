"""Whisper equal to transformers' on a tiny random checkpoint and synthetic sounds."""

import msgspec
import numpy as np
import pytest
import torch
from transformers import GenerationConfig, WhisperFeatureExtractor

from pagoda.core.messages import Alignment
from pagoda.kernels import ops
from pagoda.planner.memory.tensors import model_tensors, parameter_count
from pagoda.runtime.alignment import Aligner
from pagoda.runtime.media import RequestMedia, finish
from pagoda.text.media.select import processor_for
from pagoda.text.sounds.alignment import token_times
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


GENERATION = GenerationConfig(
    lang_to_id={"<|en|>": 203}, task_to_id={"transcribe": 206}, is_multilingual=True,
    no_timestamps_token_id=208, eos_token_id=201, pad_token_id=201, decoder_start_token_id=202,
    max_length=sound.DECODER["max_target_positions"], alignment_heads=[[2, 1], [0, 0], [2, 0]],
)  # fmt: skip
PROMPT = [202, 203, 206]


@pytest.mark.parametrize("seconds", [1.0, 0.73])
def test_times_of_tokens_equal_transformers(seconds, reference, folder, processor, tmp_path):
    samples = sound.sound(seconds, 5)
    extracted = sound.extracted(samples)
    theirs = reference.generate(
        extracted["input_features"], attention_mask=extracted["feature_attention_mask"],
        generation_config=GENERATION, language="en", task="transcribe", return_timestamps=True,
        return_token_timestamps=True, force_unique_generate_call=True, return_dict_in_generate=True,
    )  # fmt: skip
    ids = theirs["sequences"][0].tolist()
    frames = int(extracted["feature_attention_mask"].sum()) // 2
    alignment = Alignment(GENERATION.alignment_heads, len(PROMPT), frames)
    alignment = msgspec.convert(msgspec.to_builtins(alignment), Alignment)
    driver = sound.HearingDriver(tiny.load(folder), processor)
    driver.watches["it"] = alignment.heads
    prompt = [0] * sound.HEARD + ids[:-1]
    item = sound.placed(sound.heard(processor, samples), 0, tmp_path)
    for name in ("it", "other"):
        driver.media[name] = RequestMedia([item], len(prompt))
    aligner = Aligner()
    # In chunks, of which the first is sound alone, and beside another request.
    for begin, end in ((0, 20), (20, 57), (57, len(prompt))):
        driver.step({"other": prompt[begin:end], "it": prompt[begin:end]})
        aligner.add(0, begin, driver.watched.found.get(1), alignment)
    assert 0 not in driver.watched.found
    scores = aligner.take(0, alignment)
    assert scores.shape == (len(ids) - 1 - len(PROMPT), frames)
    wanted = theirs["token_timestamps"][0, len(PROMPT) :].tolist()
    assert len(set(wanted)) > 3
    np.testing.assert_allclose(token_times(scores), wanted, atol=1e-6)


def test_planned_parameters_are_those_of_the_checkpoint(reference, model):
    # The biases of keys are kept as zeros, and so are places of text where there is sound.
    layers = sound.TOWER["encoder_layers"] + 2 * sound.DECODER["decoder_layers"]
    zeros = (layers + sound.HEARD) * sound.TOWER["d_model"]
    assert parameter_count(model.spec) == sum(p.numel() for p in reference.parameters()) + zeros
    assert model.nbytes == 4 * parameter_count(model.spec)
    names = [tensor.name for tensor in model_tensors(model.spec)]
    assert sorted(names) == sorted(rule.param for rule in model.spec.expanded_weights())
