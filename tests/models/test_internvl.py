"""InternVL equal to transformers' on tiny random checkpoints, and pictures' tiles."""

import numpy as np
import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.base.errors import RequestError, UnsupportedModelError
from pagoda.kernels import ops
from pagoda.models.loader import build_model
from pagoda.planner.memory.tensors import model_tensors, parameter_count
from pagoda.runtime.media import finish
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model
from tests.models import internvl as vision
from tests.models import tiny
from tests.models.test_qwen3_vl import close, words
from tests.models.vision import VisionDriver, picture

SIZES = [("gradient", 112, 57), ("noise", 97, 203), ("letters", 310, 51), ("noise", 40, 40)]
TILES = [3, 3, 7, 1]
"""Of 1 x 2, 2 x 1 and 1 x 6 tiles, each with the whole beside them, and a single one."""


@pytest.fixture(scope="module")
def reference():
    return vision.make()


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("internvl")
    vision.save(reference, folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return tiny.load(folder)


def processor(folder):
    return processor_for(open_model(folder), "image")


def around(images: list, folder) -> list:
    """Text, then the pictures with text behind each."""
    pieces = [words(9, 1)]
    for number, image in enumerate(images):
        pieces += [vision.seen(folder, image), words(7 + number, 2 + number)]
    return pieces


def test_tiles_and_the_tower_equal_transformers(reference, model, folder):
    images = [picture(*size) for size in SIZES]
    theirs = vision.processed_by_transformers(images)
    assert theirs["num_patches"].tolist() == TILES
    with torch.inference_mode():
        expected = reference.model.get_image_features(theirs["pixel_values"]).pooler_output
    media = [vision.seen(folder, image) for image in images]
    assert [len(medium.pieces) for medium in media] == TILES
    assert media[0].text == "<img><IMG_CONTEXT><IMG_CONTEXT><IMG_CONTEXT></img>"
    pieces = [piece for medium in media for piece in medium.pieces]
    for piece, pixels, embeddings in zip(pieces, theirs["pixel_values"], expected, strict=True):
        patches, grid = processor(folder).patches(piece.values)
        own = torch.from_numpy(patches).view(2, 2, 2, 2, 3, 14, 14).permute(4, 0, 2, 5, 1, 3, 6)
        torch.testing.assert_close(own.reshape(3, 56, 56), pixels, rtol=0, atol=1e-5)
        with torch.inference_mode():
            (found,) = finish(model.encoders["image"](torch.from_numpy(patches), grid))
        close(found, embeddings)


@pytest.mark.parametrize("size", [(1920, 1080), (100, 700), (448, 448), (1000, 1001)])
def test_grids_are_those_of_transformers(size, folder):
    image = picture("gradient", *size)
    theirs = vision.processed_by_transformers([image])["num_patches"].tolist()
    assert [len(vision.seen(folder, image).pieces)] == theirs


def test_limits(folder):
    image = np.asarray(picture(*SIZES[2]))[None]
    limited = processor(folder).limited({"image": 4 * vision.TOKENS + 1})
    assert len(limited.process(image).pieces) == 4
    assert len(processor(folder).limited({"image": vision.TOKENS}).process(image).pieces) == 1
    with pytest.raises(RequestError, match="at least 4 tokens .* no more than 3 here"):
        processor(folder).limited({"image": vision.TOKENS - 1})


@pytest.mark.parametrize("packed", [False, True])
def test_logits_equal(packed, reference, folder, tmp_path):
    if packed and not ops.can_pack("cpu"):
        pytest.skip("no native kernels")
    images = [picture(*size) for size in SIZES[1:]]
    prompt = vision.prompt_of(around(images, folder), tmp_path)
    ids = prompt.ids + words(6, 11)
    expected = vision.reference_logits(reference, ids, images)
    loaded = tiny.load(folder, packed=packed)
    for chunk in (500, 7):
        driver = VisionDriver(loaded, processor(folder))
        driver.add("r", prompt)
        close(driver.run(ids, chunk), expected)


def test_requests_with_and_without_pictures_share_steps(reference, model, folder, tmp_path):
    driver = VisionDriver(model, processor(folder))
    images = {"a": [picture(*SIZES[0])], "text": [], "b": [picture(*SIZES[3])]}
    prompts = {r: vision.prompt_of(around(own, folder), tmp_path) for r, own in images.items()}
    for req, prompt in prompts.items():
        driver.add(req, prompt)
    found = driver.step({req: prompt.ids for req, prompt in prompts.items()})
    for req, prompt in prompts.items():
        close(found[req], vision.reference_logits(reference, prompt.ids, images[req]))


_LARGE = {"attention_bias": False, "use_qk_norm": True, "norm_type": "rms_norm"}


@pytest.mark.parametrize(
    ("text", "tower"), [("qwen3", _LARGE), ("qwen2", {"use_mean_pooling": False})]
)
def test_variants(text, tower, tmp_path):
    """The 6B tower's norms, as the 38B and 78B models have it; and a norm behind the last block."""
    reference = vision.make(text, tower)
    vision.save(reference, tmp_path)
    loaded = tiny.load(tmp_path)
    assert parameter_count(loaded.spec) == sum(p.numel() for p in reference.parameters())
    assert loaded.nbytes == 4 * parameter_count(loaded.spec)
    planned = {tensor.name for tensor in model_tensors(loaded.spec)}
    assert planned == {rule.param for rule in loaded.spec.expanded_weights()}
    images = [picture(*SIZES[0])]
    prompt = vision.prompt_of(around(images, tmp_path), tmp_path)
    driver = VisionDriver(loaded, processor(tmp_path))
    driver.add("r", prompt)
    close(driver.run(prompt.ids, 50), vision.reference_logits(reference, prompt.ids, images))


@pytest.mark.parametrize(("text", "tower"), [("qwen2", {}), ("qwen3", _LARGE)])
def test_a_gguf_with_its_tower_beside_it(text, tower, tmp_path):
    reference = vision.make(text, tower)
    vision.write_tower(tmp_path / "mmproj-F32.gguf", reference)
    path = tmp_path / "model.gguf"
    vision.write_model(path, reference)
    files = open_model(path)
    spec = spec_for(None, files.metadata, files.checkpoint.tensors)
    loaded = build_model(spec, files.checkpoint, dtype=torch.float32, device="cpu")
    own = processor_for(files, "image")
    image = picture(*SIZES[1])
    pieces = [words(5, 1), own.process(np.asarray(image)[None]), words(4, 2)]
    prompt = vision.prompt_of(pieces, tmp_path)
    driver = VisionDriver(loaded, own)
    driver.add("r", prompt)
    close(driver.run(prompt.ids, 16), vision.reference_logits(reference, prompt.ids, [image]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text_config": {"model_type": "gpt_oss"}}, "text_config.model_type is 'gpt_oss'"),
        ({"vision_feature_layer": -2}, "whose layer -2 is read"),
        ({"vision_feature_select_strategy": "full"}, r"is read \(full\)"),
        ({"projector_hidden_act": "relu"}, "with gelu and relu"),
    ],
)
def test_what_is_not_supported_is_named(changes, message, reference):
    config = {**reference.config.to_dict(), "architectures": ["InternVLForConditionalGeneration"]}
    with pytest.raises(UnsupportedModelError, match=message):
        spec_for({**config, **changes}, {}, ())
