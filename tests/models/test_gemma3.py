"""Gemma 3's pictures equal to transformers' on tiny random checkpoints."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.base.errors import RequestError
from pagoda.kernels import ops
from pagoda.models.loader import build_model
from pagoda.planner.memory.tensors import parameter_count
from pagoda.runtime.media import finish
from pagoda.text.images.gemma3 import Gemma3ImageProcessor
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model
from tests.models import gemma3_vision as vision
from tests.models import tiny
from tests.models.vision import VisionDriver, picture, seen

SIZES = [("gradient", 300, 300), ("noise", 97, 203), ("letters", 310, 51), ("noise", 5, 20)]


@pytest.fixture(scope="module")
def reference():
    return vision.make()


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma3")
    vision.save(reference, folder)
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


@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_those_of_transformers(size, folder):
    image = picture(*size)
    (theirs,) = vision.processed_by_transformers([image])["pixel_values"]
    processor = processor_for(open_model(folder), "image")
    mine = seen(processor, image)
    patches, grid = processor.patches(mine.values)
    assert (mine.num_tokens, grid) == (vision.TOKENS, (1, 4, 4))
    cut = theirs.unfold(1, 14, 14).unfold(2, 14, 14).permute(1, 2, 0, 3, 4).flatten(2).flatten(0, 1)
    np.testing.assert_allclose(patches, cut.numpy(), rtol=0, atol=1e-3)


def test_text_around_a_picture_is_that_of_transformers(folder):
    processor = processor_for(open_model(folder), "image")
    medium = processor.process(np.asarray(picture(*SIZES[0]))[None])
    assert medium.text == "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"
    small = processor.limited({"image": vision.TOKENS - 1})
    with pytest.raises(RequestError, match="takes 4 tokens .* no more than 3 here"):
        small.process(np.asarray(picture(*SIZES[0]))[None])


@pytest.mark.parametrize("size", SIZES[:3])
def test_the_tower_equals_transformers(size, reference, model, folder):
    image = picture(*size)
    with torch.inference_mode():
        theirs = reference.get_image_features(**vision.processed_by_transformers([image]))
        processor = processor_for(open_model(folder), "image")
        patches, grid = processor.patches(seen(processor, image).values)
        (found,) = finish(model.encoders["image"](torch.from_numpy(patches), grid))
    close(found, theirs.pooler_output[0])


@pytest.mark.parametrize("packed", [False, True])
def test_logits_equal(packed, reference, folder, tmp_path):
    """In one step, and in steps that end where pictures do."""
    if packed and not ops.can_pack("cpu"):
        pytest.skip("no native kernels")
    images = [picture(*size) for size in SIZES]
    prompt = vision.prompt_of(around(images, folder), tmp_path)
    ids = prompt.ids + words(6, 11)
    expected = vision.reference_logits(reference, ids, images)
    loaded = tiny.load(folder, packed=packed)
    for cuts in ([], [item.start for item in prompt.items],
                 [item.start + item.length for item in prompt.items]):  # fmt: skip
        driver = driver_of(loaded, folder)
        driver.add("r", prompt)
        edges = [0, *cuts, len(prompt.ids), *range(len(prompt.ids) + 1, len(ids) + 1)]
        found = [driver.step({"r": ids[a:b]})["r"] for a, b in pairwise(edges) if a < b]
        close(torch.cat(found), expected)


@pytest.mark.parametrize("kind", ["sliding_attention", "full_attention"])
def test_pictures_look_both_ways_in_each_kind_of_layer(kind, tmp_path):
    """Else the test above would show nothing: a step that ends in a picture gives other logits."""
    reference = vision.make(layer_types=[kind] * 3)
    vision.save(reference, tmp_path)
    image = picture(*SIZES[0])
    prompt = vision.prompt_of([words(5, 1), *vision.processed(tmp_path, [image])], tmp_path)
    expected = vision.reference_logits(reference, prompt.ids, [image])
    model = tiny.load(tmp_path)
    for chunk in (len(prompt.ids), 8):
        driver = driver_of(model, tmp_path)
        driver.add("r", prompt)
        apart = (driver.run(prompt.ids, chunk) - expected).abs().max()
        assert apart < 1e-4 if chunk == len(prompt.ids) else apart > 0.01


def test_requests_with_and_without_pictures_share_steps(reference, model, folder, tmp_path):
    driver = driver_of(model, folder)
    kinds = {"a": SIZES[:1], "text": [], "b": SIZES[1:3]}
    prompts, images = {}, {}
    for req, sizes in kinds.items():
        images[req] = [picture(*size) for size in sizes]
        prompts[req] = vision.prompt_of(around(images[req], folder), tmp_path)
        driver.add(req, prompts[req])
    found = driver.step({req: prompt.ids for req, prompt in prompts.items()})
    for req, prompt in prompts.items():
        close(found[req], vision.reference_logits(reference, prompt.ids, images[req]))


def test_names_as_transformers_5_writes_them(reference, model, tmp_path):
    vision.save(reference, tmp_path, as_published=False)
    loaded = tiny.load(tmp_path)
    for name in ("patches", "projection"):
        theirs, mine = (getattr(x.vision, name).format.weight for x in (model, loaded))
        assert torch.equal(theirs, mine)


def test_every_parameter_is_counted(reference, model):
    head = "lm_head.weight"  # tied
    state = reference.state_dict()
    assert parameter_count(model.spec) == sum(x.numel() for n, x in state.items() if n != head)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_gguf_with_its_tower_beside_it(swapped, tmp_path):
    """As the converter writes them. Its file does not say which layers have windows."""
    model = vision.make(num_hidden_layers=7, layer_types=None, query_pre_attn_scalar=16)
    vision.write_tower(tmp_path / "mmproj-F16.gguf", model, swapped=swapped)
    path = tmp_path / "model.gguf"
    vision.write_model(path, model)
    files = open_model(path)
    processor = processor_for(files, "image")
    mean, std = (tuple(vision.PREPROCESSOR[name]) for name in ("image_mean", "image_std"))
    assert isinstance(processor, Gemma3ImageProcessor)
    assert (processor.side, processor.num_tokens) == (56, 4)
    np.testing.assert_allclose([processor.mean, processor.std], [mean, std], rtol=1e-6)
    spec = spec_for(None, files.metadata, files.checkpoint.tensors)
    loaded = build_model(spec, files.checkpoint, dtype=torch.float32, device="cpu")
    image = picture(*SIZES[1])
    prompt = vision.prompt_of([words(5, 1), seen(processor, image), words(7, 2)], tmp_path)
    driver = VisionDriver(loaded, processor)
    driver.add("r", prompt)
    expected = vision.reference_logits(model, prompt.ids, [image])
    close(driver.run(prompt.ids, len(prompt.ids)), expected)
