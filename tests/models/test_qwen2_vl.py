"""Qwen2-VL and Qwen2.5-VL equal to transformers' on tiny random checkpoints and pictures of any
size; films in test_qwen2_video.py."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2VLImageProcessorPil

from pagoda.arch.read import Reader
from pagoda.arch.registry import spec_for
from pagoda.base.errors import ConfigError, UnsupportedModelError
from pagoda.kernels import ops
from pagoda.models.loader import build_model
from pagoda.planner.memory.tensors import model_tensors, parameter_count
from pagoda.runtime.media import finish
from pagoda.text.images.qwen_vl import qwen2_from_config
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model
from tests.models import tiny, vision, vision_gguf
from tests.models.driver import Driver
from tests.models.test_qwen3_vl import close, words
from tests.models.vision import QWEN2_PREPROCESSOR, VisionDriver, picture

SIZES = [("gradient", 84, 84), ("noise", 97, 203), ("letters", 310, 51), ("noise", 33, 31)]
"""Of 9 tokens (one window of Qwen2.5-VL's here), of 3 x 7, of 11 x 2 and of 2 x 2."""


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen2_5_vl"])
def family(request):
    return request.param


@pytest.fixture(scope="module")
def reference(family):
    return vision.make(family=family)


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen2vl")
    vision.save(reference, folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return tiny.load(folder)


def driver_of(model, folder) -> VisionDriver:
    return VisionDriver(model, processor_for(open_model(folder), "image"))


def around(images: list, folder) -> list:
    """Text, then the pictures with text behind each."""
    pieces = [words(9, 1)]
    for number, image in enumerate(vision.processed(folder, images)):
        pieces += [[200], image, [202], words(7 + number, 2 + number)]
    return pieces


@pytest.mark.parametrize("size", SIZES)
def test_pixels_and_grid_are_those_of_transformers(size, folder):
    image = picture(*size)
    theirs = vision.processed_by_transformers([image], QWEN2_PREPROCESSOR)
    processor = processor_for(open_model(folder), "image")
    mine = vision.seen(processor, image)
    patches, grid = processor.patches(mine.values)
    assert theirs["image_grid_thw"].tolist() == [list(grid)]
    assert mine.num_tokens == len(patches) // 4
    np.testing.assert_allclose(patches, theirs["pixel_values"].numpy(), rtol=0, atol=1e-3)


@pytest.mark.parametrize("size", [(1920, 1080), (40, 30), (2600, 300), (1280, 720)])
def test_what_a_checkpoint_leaves_out_is_as_in_transformers(size):
    image = picture("gradient", *size)
    theirs = Qwen2VLImageProcessorPil()(images=[image], return_tensors="pt")
    processor = qwen2_from_config(Reader({}, "x"))
    patches, grid = processor.patches(vision.seen(processor, image).values)
    assert theirs["image_grid_thw"].tolist() == [list(grid)]
    np.testing.assert_allclose(patches, theirs["pixel_values"].numpy(), rtol=0, atol=1e-3)


@pytest.mark.parametrize("size", SIZES)
def test_the_tower_equals_transformers(size, reference, model):
    theirs = vision.processed_by_transformers([picture(*size)], QWEN2_PREPROCESSOR)
    with torch.inference_mode():
        expected = reference.model.visual(theirs["pixel_values"], theirs["image_grid_thw"])
        grid = tuple(theirs["image_grid_thw"][0].tolist())
        found = finish(model.encoders["image"](theirs["pixel_values"], grid))
    close(found[0], expected.pooler_output)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("chunk", [7, 500])
def test_logits_equal(chunk, packed, reference, folder, tmp_path):
    if packed and not ops.can_pack("cpu"):
        pytest.skip("no native kernels")
    images = [picture(*size) for size in SIZES[:3]]
    prompt = vision.prompt_of(around(images, folder), tmp_path)
    driver = driver_of(tiny.load(folder, packed=packed), folder)
    driver.add("r", prompt)
    ids = prompt.ids + words(6, 11)
    close(driver.run(ids, chunk), vision.reference_logits(reference, ids, images))
    assert driver.encoder.num_encoded == len(images)


def test_requests_with_and_without_pictures_share_steps(reference, model, folder, tmp_path):
    driver = driver_of(model, folder)
    images = {"text": [], "seeing": [picture(*size) for size in SIZES[1:3]]}
    prompts = {req: vision.prompt_of(around(own, folder), tmp_path) for req, own in images.items()}
    for req, prompt in prompts.items():
        driver.add(req, prompt)
    found = {req: [] for req in prompts}
    left = {req: list(prompt.ids) for req, prompt in prompts.items()}
    while left:
        step = {req: [ids.pop(0) for _ in range(min(11, len(ids)))] for req, ids in left.items()}
        for req, logits in driver.step(step).items():
            found[req].append(logits)
        left = {req: ids for req, ids in left.items() if ids}
    for req, parts in found.items():
        close(torch.cat(parts), vision.reference_logits(reference, prompts[req].ids, images[req]))


def test_a_language_model_of_its_own_name(reference, folder, model, tmp_path):
    """As programs save it that took the names of transformers' modules."""
    tensors = load_file(folder / "model.safetensors")
    nested = {"visual.": "model.visual.", "model.": "model.language_model."}
    renamed = {
        next((new + name.removeprefix(old) for old, new in nested.items() if name.startswith(old)),
             name): weight
        for name, weight in tensors.items()
    }  # fmt: skip
    assert renamed.keys() == {name for name, _ in reference.named_parameters()}
    save_file(renamed, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    ids = words(20, 3)
    loaded = tiny.load(tmp_path)
    assert loaded.encoders.keys() == {"image"}
    torch.testing.assert_close(Driver(loaded).run(ids, 20), Driver(model).run(ids, 20))


@pytest.mark.parametrize("changes", [
    {"family": "qwen2_vl", "tie_word_embeddings": True},
    {"family": "qwen2_vl", "vision": {"mlp_ratio": 3, "num_heads": 4}},
    {"family": "qwen2_5_vl", "vision": {"fullatt_block_indexes": [0], "window_size": 112}},
    {"family": "qwen2_5_vl", "vision": {"fullatt_block_indexes": []}},
    {"family": "qwen2_5_vl", "text": {
        "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}},
])  # fmt: skip
def test_variants(changes, tmp_path):
    reference = vision.make(**changes)
    vision.save(reference, tmp_path)
    images = [picture(*SIZES[2])]
    prompt = vision.prompt_of(around(images, tmp_path), tmp_path)
    driver = driver_of(tiny.load(tmp_path), tmp_path)
    driver.add("r", prompt)
    close(driver.run(prompt.ids, 16), vision.reference_logits(reference, prompt.ids, images))


def test_planned_parameters_are_those_of_the_checkpoint(reference, model):
    assert parameter_count(model.spec) == sum(p.numel() for p in reference.parameters())
    assert model.nbytes == 4 * parameter_count(model.spec)
    planned = {
        tensor.name: tensor.shape for tensor in model_tensors(model.spec) if "vision" in tensor.name
    }
    assert planned.keys() == {
        rule.param for rule in model.spec.expanded_weights() if "vision" in rule.param
    }


@pytest.fixture(scope="module")
def ggufs(family, tmp_path_factory):
    """(folder, what transformers computes with)."""
    # A GGUF does not say how large windows are: as large as in published checkpoints.
    windows = {"window_size": 112} if family == "qwen2_5_vl" else {}
    reference, folder = vision.make(vision=windows, family=family), tmp_path_factory.mktemp("gguf")
    vision_gguf.write_model(folder / "tiny-F32.gguf", reference)
    vision_gguf.write_qwen2_tower(folder / "mmproj-tiny-F16.gguf", reference, QWEN2_PREPROCESSOR)
    return folder, reference


def built(files):
    spec = spec_for(files.config, files.metadata, files.checkpoint.tensors)
    return build_model(spec, files.checkpoint, dtype=torch.float32, device="cpu")


def test_gguf_and_its_tower(ggufs, tmp_path):
    folder, reference = ggufs
    files = open_model(folder)
    assert files.projector == folder / "mmproj-tiny-F16.gguf"
    processor = processor_for(files, "image")
    assert (processor.min_pixels, processor.max_pixels) == (3136, 12845056)
    # The file keeps no bounds of its own; those of the other tests make small pictures.
    processor = replace(processor, max_pixels=QWEN2_PREPROCESSOR["max_pixels"])
    images = [picture(*size) for size in SIZES[:2]]
    seen = [vision.seen(processor, image) for image in images]
    pieces = [words(5, 1), [200], seen[0], words(3, 2), seen[1], words(4, 3)]
    prompt = vision.prompt_of(pieces, tmp_path)
    driver = VisionDriver(built(files), processor)
    driver.add("r", prompt)
    close(driver.run(prompt.ids, 16), vision.reference_logits(reference, prompt.ids, images))


def test_gguf_without_its_tower_reads_text(ggufs, tmp_path):
    folder, reference = ggufs
    (tmp_path / "alone.gguf").symlink_to(folder / "tiny-F32.gguf")
    files = open_model(tmp_path / "alone.gguf")
    assert files.projector is None and processor_for(files, "image") is None
    ids = words(40, 2)
    close(Driver(built(files)).run(ids, 16), vision.reference_logits(reference, ids, []))


def test_towers_that_do_not_fit(ggufs, tmp_path):
    folder, _ = ggufs
    with pytest.raises(ConfigError, match="another model"):
        open_model(folder / "tiny-F32.gguf", str(folder / "tiny-F32.gguf"))
    vision_gguf.write_tower(tmp_path / "mmproj.gguf", vision.make(), [0.5] * 3, [0.5] * 3)
    with pytest.raises(UnsupportedModelError, match="'qwen3vl_merger', and this model's is one of"):
        built(open_model(folder / "tiny-F32.gguf", str(tmp_path / "mmproj.gguf")))
