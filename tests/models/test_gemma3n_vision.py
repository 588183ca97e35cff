"""Gemma 3n's pictures equal to transformers' on a tiny random checkpoint."""

import numpy as np
import pytest
import torch
from transformers import Gemma3nTextConfig, utils

from pagoda.arch.families.gemma3n_vision import vision_from_config
from pagoda.arch.registry import spec_for
from pagoda.arch.spec import ModelSpec
from pagoda.kernels import cpu, ops
from pagoda.models.loader import build_model
from pagoda.planner.memory.assumed import Dummy
from pagoda.planner.memory.tensors import model_tensors
from pagoda.planner.memory.weights import weight_bytes
from pagoda.runtime.media import finish
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model
from tests.models import gemma3n_vision as vision
from tests.models import tiny
from tests.models.vision import VisionDriver, picture

SIZES = [("gradient", 300, 280), ("noise", 97, 203)]


@pytest.fixture(scope="module")
def reference():
    return vision.Reference()


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma3n")
    vision.save(reference.model, folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return tiny.load(folder)


def words(count: int, seed: int) -> list[int]:
    return [token % 200 for token in tiny.random_ids(count, seed=seed)]


def around(images: list, folder) -> list:
    """Text, then the pictures with text behind each."""
    pieces = [words(9, 1)]
    for number, image in enumerate(vision.processed(folder, images)):
        pieces += [image, words(7 + number, 2 + number)]
    return pieces


def driver_of(model, folder) -> VisionDriver:
    return VisionDriver(model, processor_for(open_model(folder), "image"))


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert expected.std() > 0.1  # else a fault could hide below the bound
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-4)


def test_pictures_equal_transformers(folder):
    processor = processor_for(open_model(folder), "image")
    for size in SIZES:
        (piece,) = vision.processed(folder, [picture(*size)])
        patches, grid = processor.patches(piece.values)
        found = torch.from_numpy(patches).view(*grid[1:], 3).permute(2, 0, 1)
        expected = vision.processed_by_transformers(picture(*size))[0]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_the_tower_equals_transformers(reference, model, folder):
    processor = processor_for(open_model(folder), "image")
    (piece,) = vision.processed(folder, [picture(*SIZES[0])])
    patches, grid = processor.patches(piece.values)
    (found,) = finish(model.encoders["image"](torch.from_numpy(patches), grid))
    close(found[:-1], reference.image(picture(*SIZES[0]))[0])
    end = torch.tensor([vision.END])
    with torch.inference_mode():
        close(found[-1:], reference.model.model.embed_vision(input_ids=end))


@pytest.mark.parametrize("packed", [False, True])
def test_logits_equal(packed, reference, folder, tmp_path):
    images = [picture(*size) for size in SIZES]
    prompt = vision.prompt_of(around(images, folder), tmp_path)
    expected = reference.logits(prompt.ids, images)
    loaded = tiny.load(folder, packed=packed)
    for chunk in (600, 173):
        driver = driver_of(loaded, folder)
        driver.add("r", prompt)
        close(driver.run(prompt.ids, chunk), expected)


# What `embedded_by_timm` gives with timm 1.0.31 and transformers 5.24: of some tokens, the last one
# among them, the first four features.
_CONFIG = {"eoi_token_id": vision.END, "vision_config": vision.VISION}
_PLACES = [0, 37, 136, 255, 256]
_EXPECTED = {
    256: [
        [-0.727529, -0.780743, 0.707818, -1.460601],
        [-0.456606, -0.900393, 0.840087, -1.334562],
        [-0.503330, -0.843082, 0.814176, -1.298847],
        [-0.705994, -0.732440, 0.809315, -1.308614],
        [1.300123, 0.728898, -2.822381, 0.440576],
    ],
    512: [
        [-0.838956, -0.801717, 0.528465, -1.891120],
        [-0.634542, -0.895151, 0.611727, -1.818926],
        [-0.637391, -0.904630, 0.656341, -1.805170],
        [-0.810777, -0.849644, 0.576995, -1.829306],
        [1.300123, 0.728898, -2.822381, 0.440576],
    ],
}


@pytest.mark.parametrize("side", [256, 512])
def test_the_tower_equals_what_timm_gave(side):
    """Also where timm is not: what it gave is kept here."""
    image = picture("letters", side, side)
    pixels = torch.from_numpy(np.array(image)).view(-1, 3) / 255
    with torch.inference_mode():
        tower = vision.tower(vision_from_config(_CONFIG), 64)
        (found,) = finish(tower.slices(pixels, (1, side, side)))
    expected = torch.tensor(_EXPECTED[side])
    if utils.is_timm_available():
        theirs = vision.embedded_by_timm(image)
        close(found, theirs)
        close(expected, theirs[_PLACES, :4])
    close(found[_PLACES, :4], expected)


def test_other_sides_are_refused():
    tower = vision.tower(vision_from_config(_CONFIG), 64)
    with pytest.raises(ValueError, match="256 x 300 pixels, and the model reads multiples of 256"):
        finish(tower.slices(torch.zeros(256 * 300, 3), (1, 256, 300)))


def model_of(multiplier: float) -> ModelSpec:
    # Rows for tokens behind a table's end are there beside what is counted.
    sizes = {**vision.TEXT, "vocab_size_per_layer_input": vision.TEXT["vocab_size"]}
    text = {**Gemma3nTextConfig(**sizes).to_dict(), "dtype": "bfloat16"}
    tower = {**vision.VISION, "model_args": {"channel_multiplier": multiplier}}
    config = {
        "architectures": ["Gemma3nForConditionalGeneration"], "text_config": text,
        "vision_config": tower, "eoi_token_id": vision.END,
    }  # fmt: skip
    return spec_for(config, {}, ())


def test_the_model_holds_what_is_predicted():
    spec = model_of(0.0625)
    model = build_model(spec, Dummy(), dtype=torch.float32, device="cpu")
    found = model_tensors(spec)
    assert sorted(x.name for x in found) == sorted(x.param for x in spec.expanded_weights())
    assert model.nbytes == 4 * sum(x.elements for x in found)


@pytest.mark.skipif(cpu.native() is None, reason="needs the native kernels")
def test_packed_weights_take_what_is_predicted():
    """In bfloat16, as published; convolutions of single channels are held in fp32."""
    spec = model_of(0.5)
    model = build_model(spec, Dummy(), dtype=torch.bfloat16, device="cpu", packed=True)
    predicted = weight_bytes(spec, {}, "bfloat16", ops.packed_storages("cpu"))
    assert model.nbytes == pytest.approx(predicted, rel=0.03)
