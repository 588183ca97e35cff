"""Phi-4-multimodal's pictures equal to transformers' on tiny random checkpoints."""

import json

import numpy as np
import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.base.errors import CheckpointError, RequestError, UnsupportedModelError
from pagoda.models.adapters import ModelAdapters
from pagoda.planner.memory.tensors import model_tensors, parameter_count
from pagoda.planner.resolved import ResolvedAdapters
from pagoda.runtime.media import finish
from pagoda.text.media.select import processor_for
from pagoda.weights.adapters import open_adapter
from pagoda.weights.files import open_model
from tests.models import phi4_vision as vision
from tests.models import tiny
from tests.models.test_qwen3_vl import close, words
from tests.models.tiny_adapter import TinyAdapter
from tests.models.vision import IMAGE, VisionDriver, VisionPrompt, picture, prompt_of, seen

SIZES = [("gradient", 112, 57), ("noise", 97, 203), ("letters", 310, 51), ("noise", 40, 15)]
"""Tiles of 2 x 2, 3 x 2, 1 x 6 and 1, some of them covered in part, by odd numbers of patches."""


@pytest.fixture(scope="module")
def reference():
    return vision.make()


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("phi4")
    vision.save(reference, folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return tiny.load(folder)


def processor(folder):
    return processor_for(open_model(folder), "image")


def around(images: list, folder, tmp_path) -> VisionPrompt:
    """Text, then the pictures with text behind each."""
    pieces = [words(9, 1)]
    for number, image in enumerate(images):
        pieces += [seen(processor(folder), image), words(7 + number, 2 + number)]
    return prompt_of(pieces, tmp_path)


def pixels(patches: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """[3, height, width] of a tile's patches."""
    tile = patches.view(rows, columns, 3, 14, 14).permute(2, 0, 3, 1, 4)
    return tile.reshape(3, rows * 14, columns * 14)


@pytest.mark.parametrize(
    "size", [(300, 200), (896, 448), (1000, 700), (449, 440), (2000, 90), (90, 1300)]
)
def test_pictures_as_published_equal_transformers(size, tmp_path):
    settings = {
        **vision.PREPROCESSOR, "size": {"height": 448, "width": 448}, "dynamic_hd": 5,
    }  # fmt: skip
    (tmp_path / "config.json").write_text('{"architectures": ["Phi4MultimodalForCausalLM"]}')
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    image = picture("gradient", *size)
    theirs = vision.processed_by_transformers([image], settings)
    own = processor_for(open_model(tmp_path), "image")
    piece = seen(own, image)
    assert [piece.num_tokens] == theirs["num_img_tokens"]
    patches, grid = own.patches(piece.values)
    patches, tiles = torch.from_numpy(patches), theirs["image_pixel_values"][0]
    torch.testing.assert_close(pixels(patches[:1024], 32, 32), tiles[0], rtol=0, atol=1e-5)
    done = 1024
    across = -(-grid[2] // 32)
    masks = theirs["image_attention_mask"][0]
    for at, tile in enumerate(tiles[1:]):
        rows, columns = (
            min(32, count - 32 * place)
            for count, place in zip(grid[1:], divmod(at, across), strict=True)
        )
        assert masks[1 + at, :rows, :columns].all() and masks[1 + at].sum() == rows * columns
        rows, columns = rows + rows % 2, columns + columns % 2
        found = pixels(patches[done : done + rows * columns], rows, columns)
        expected = tile[:, : rows * 14, : columns * 14]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        done += rows * columns
    assert done == len(patches)


def test_the_tower_equals_transformers(reference, model, folder):
    embed = reference.model.embed_tokens_extend.image_embed
    for size in SIZES:
        piece = seen(processor(folder), picture(*size))
        ids = torch.full((1, piece.num_tokens), IMAGE)
        with torch.inference_mode():
            empty = torch.zeros(1, piece.num_tokens, 64)
            expected = embed(ids, empty, **vision.inputs([picture(*size)]))[0]
            patches, grid = processor(folder).patches(piece.values)
            (found,) = finish(model.encoders["image"](torch.from_numpy(patches), grid))
        close(found, expected)


@pytest.mark.parametrize("packed", [False, True])
def test_logits_equal(packed, reference, folder, tmp_path):
    images = [picture(*size) for size in SIZES[1:]]
    prompt = around(images, folder, tmp_path)
    expected = vision.reference_logits(reference, prompt.ids, images)
    loaded = tiny.load(folder, packed=packed)
    for chunk in (500, 17):
        driver = VisionDriver(loaded, processor(folder))
        driver.add("r", prompt)
        close(driver.run(prompt.ids, chunk), expected)


def test_requests_with_and_without_pictures_share_steps(reference, model, folder, tmp_path):
    driver = VisionDriver(model, processor(folder))
    images = {"a": [picture(*SIZES[0])], "text": [], "b": [picture(*SIZES[3])]}
    prompts = {r: around(own, folder, tmp_path) for r, own in images.items()}
    for req, prompt in prompts.items():
        driver.add(req, prompt)
    found = driver.step({req: prompt.ids for req, prompt in prompts.items()})
    for req, prompt in prompts.items():
        close(found[req], vision.reference_logits(reference, prompt.ids, images[req]))


def test_a_published_checkpoint_and_its_adapter(reference, tmp_path):
    vision.save_as_published(reference, tmp_path)
    loaded = tiny.load(tmp_path)
    assert processor(tmp_path).token == "<|endoftext10|>"
    image = picture(*SIZES[1])
    prompt = around([image], tmp_path, tmp_path)
    driver = VisionDriver(loaded, processor(tmp_path))
    driver.add("r", prompt)
    close(driver.run(prompt.ids, 50), vision.reference_logits(reference, prompt.ids, [image]))
    adapter = TinyAdapter(reference, targets=vision.ADAPTED, alpha=4.0)
    adapter.pairs = {n: ab for n, ab in adapter.pairs.items() if n.startswith("model.layers.")}
    adapters = ModelAdapters(loaded, ResolvedAdapters(2, 8), of_gguf=False)
    adapters.load(0, [(open_adapter(adapter.save_peft(tmp_path / "vision-lora")), 1.0)])
    driver = VisionDriver(loaded, processor(tmp_path))
    driver.add("r", prompt)
    slots = torch.zeros(len(prompt.ids), dtype=torch.int32)
    found = driver.step({"r": prompt.ids}, adapters=slots)["r"]
    merged = adapter.merged_into(reference)
    close(found, vision.reference_logits(merged, prompt.ids, [image]))


def test_the_plan_knows_every_tensor(model):
    assert model.nbytes == 4 * parameter_count(model.spec)
    planned = {tensor.name for tensor in model_tensors(model.spec)}
    assert planned == {rule.param for rule in model.spec.expanded_weights()}


def test_limits(folder):
    image = np.asarray(picture(*SIZES[1]))[None]
    own = processor(folder)
    for most in (13, 25, 37):
        assert own.limited({"image": most}).process(image).pieces[0].num_tokens <= most
    with pytest.raises(RequestError, match="up to 13 tokens .* no more than 12 here"):
        own.limited({"image": 12})
    with pytest.raises(RequestError, match="too narrow"):
        own.process(np.zeros((1, 1, 900, 3), np.uint8))


@pytest.mark.parametrize(
    ("changes", "tower", "message"),
    [
        ({}, {"hidden_act": "gelu"}, "the vision tower has 'gelu'"),
        ({}, {"image_size": 70, "crop_size": 70}, "image_size is 70"),
        ({}, {"crop_size": 28}, "crop_size .*must be image_size"),
        ({}, {"feature_layer": 9}, "feature_layer .*one of 3 layers"),
        (
            {
                "architectures": ["Phi4MMForCausalLM"],
                "embd_layer": {"image_embd_layer": {"hd_transform_order": "glb_sub"}},
            },
            {},
            "hd_transform_order is 'glb_sub'",
        ),
    ],
)
def test_what_is_not_supported_is_named(changes, tower, message, reference):
    config = {**reference.config.to_dict(), "architectures": ["Phi4MultimodalForCausalLM"]}
    config["vision_config"] = {**config["vision_config"], **tower}
    with pytest.raises((UnsupportedModelError, CheckpointError), match=message):
        spec_for({**config, **changes}, {}, ())
