"""Qwen3-VL equal to transformers' on tiny random checkpoints and pictures of any size."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.base.errors import ConfigError
from pagoda.kernels import ops
from pagoda.models.loader import build_model
from pagoda.planner.memory.tensors import parameter_count
from pagoda.runtime.media import finish
from pagoda.weights.files import open_model
from tests.models import tiny, tiny_gguf_qwen35, vision, vision_gguf
from tests.models.driver import Driver
from tests.models.vision import VisionDriver, picture

SIZES = [("gradient", 64, 64), ("noise", 97, 203), ("letters", 310, 51), ("noise", 33, 31)]


@pytest.fixture(scope="module")
def reference():
    return vision.make()


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3vl")
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
        pieces += [[200], image, [202], words(7 + number, 2 + number)]
    return pieces


def driver_of(model, folder) -> VisionDriver:
    return VisionDriver(model, vision.processor_for(open_model(folder), "image"))


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert expected.std() > 0.3  # else a fault could hide below the bound
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", SIZES)
def test_pixels_and_grid_are_those_of_transformers(size, folder):
    image = picture(*size)
    theirs = vision.processed_by_transformers([image])
    processor = vision.processor_for(vision.open_model(folder), "image")
    mine = vision.seen(processor, image)
    patches, grid = processor.patches(mine.values)
    assert theirs["image_grid_thw"].tolist() == [list(grid)]
    assert mine.num_tokens == len(patches) // 4
    np.testing.assert_allclose(patches, theirs["pixel_values"].numpy(), rtol=0, atol=1e-3)


@pytest.mark.parametrize("size", SIZES)
def test_the_tower_equals_transformers(size, reference, model, folder):
    theirs = vision.processed_by_transformers([picture(*size)])
    with torch.inference_mode():
        expected = reference.model.visual(theirs["pixel_values"], theirs["image_grid_thw"])
        grid = tuple(theirs["image_grid_thw"][0].tolist())
        found = finish(model.encoders["image"](theirs["pixel_values"], grid))
    close(found[0], expected.pooler_output)
    for mine, deeper in zip(found[1:], expected.deepstack_features, strict=True):
        close(mine, deeper)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("chunk", [1, 7, 500])
def test_logits_equal(chunk, packed, reference, folder, tmp_path):
    if packed and not ops.can_pack("cpu"):
        pytest.skip("no native kernels")
    images = [picture(*size) for size in SIZES[:3]]
    prompt = vision.prompt_of(around(images, folder), tmp_path)
    written = words(6, 11)
    driver = driver_of(tiny.load(folder, packed=packed), folder)
    driver.add("r", prompt)
    ids = prompt.ids + written
    close(driver.run(ids, chunk), vision.reference_logits(reference, ids, images))
    assert driver.encoder.num_encoded == len(images)


def test_a_prompt_that_is_all_picture(reference, model, folder, tmp_path):
    image = picture(*SIZES[1])
    prompt = vision.prompt_of(vision.processed(folder, [image]), tmp_path)
    driver = driver_of(model, folder)
    driver.add("r", prompt)
    ids = prompt.ids + words(3, 1)
    close(driver.run(ids, len(prompt.ids)), vision.reference_logits(reference, ids, [image]))


def test_text_alone(reference, model, folder):
    ids = words(60, 3)
    close(driver_of(model, folder).run(ids, 20), vision.reference_logits(reference, ids, []))


def test_requests_with_and_without_pictures_share_steps(reference, model, folder, tmp_path):
    driver = driver_of(model, folder)
    kinds = {"a": SIZES[:1], "text": [], "b": SIZES[1:3]}
    prompts, images = {}, {}
    for req, sizes in kinds.items():
        images[req] = [picture(*size) for size in sizes]
        prompts[req] = vision.prompt_of(around(images[req], folder), tmp_path)
        driver.add(req, prompts[req])
    found = {req: [] for req in kinds}
    left = {req: list(prompt.ids) for req, prompt in prompts.items()}
    while left:
        step = {req: [ids.pop(0) for _ in range(min(11, len(ids)))] for req, ids in left.items()}
        for req, logits in driver.step(step).items():
            found[req].append(logits)
        left = {req: ids for req, ids in left.items() if ids}
    for req, parts in found.items():
        expected = vision.reference_logits(reference, prompts[req].ids, images[req])
        torch.testing.assert_close(torch.cat(parts), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("changes", [
    {"text": {"tie_word_embeddings": True}, "tie_word_embeddings": True},
    {"vision": {"deepstack_visual_indexes": []}},
    {"vision": {"num_heads": 4, "hidden_act": "gelu", "num_position_embeddings": 49}},
    {"text": {"attention_bias": True, "num_key_value_heads": 4}},
    {"family": "qwen3_vl_moe"},
    {"family": "qwen3_vl_moe", "text": {"mlp_only_layers": [1]}},
    {"family": "qwen3_5"},
    {"family": "qwen3_5_moe"},
])  # fmt: skip
def test_variants(changes, tmp_path):
    reference = vision.make(**changes)
    vision.save(reference, tmp_path)
    images = [picture(*SIZES[2])]
    prompt = vision.prompt_of(around(images, tmp_path), tmp_path)
    driver = driver_of(tiny.load(tmp_path), tmp_path)
    driver.add("r", prompt)
    expected = vision.reference_logits(reference, prompt.ids, images)
    torch.testing.assert_close(driver.run(prompt.ids, 16), expected, rtol=0, atol=1e-4)


def test_experts_as_transformers_saves_them(tmp_path):
    """Upright, where the hub's checkpoints have them on their side."""
    reference = vision.make(family="qwen3_vl_moe")
    reference.save_pretrained(tmp_path)
    ids = words(40, 2)
    close(Driver(tiny.load(tmp_path)).run(ids, 16), vision.reference_logits(reference, ids, []))


def test_half_precision_stays_close(reference, folder, tmp_path):
    """The distance to fp32 is no more than transformers' own in bf16."""
    images = [picture(*SIZES[1])]
    prompt = vision.prompt_of(around(images, folder), tmp_path)
    exact = vision.reference_logits(reference, prompt.ids, images)
    half = vision.make().to(torch.bfloat16)
    theirs = (vision.reference_logits(half, prompt.ids, images).float() - exact).abs().mean()
    driver = driver_of(tiny.load(folder, torch.bfloat16), folder)
    driver.add("r", prompt)
    ours = (driver.run(prompt.ids, 500) - exact).abs().mean()
    assert ours < 1.2 * theirs


def test_planned_parameters_are_those_of_the_checkpoint(reference, model):
    assert parameter_count(model.spec) == sum(p.numel() for p in reference.parameters())


@pytest.fixture(scope="module", params=["qwen3_vl", "qwen3_5", "qwen3_5_moe"])
def ggufs(request, tmp_path_factory):
    """(folder, what transformers computes with)."""
    reference, folder = vision.make(family=request.param), tmp_path_factory.mktemp("gguf")
    if request.param != "qwen3_vl":
        tiny_gguf_qwen35.write(folder / "tiny-F32.gguf", reference, tiny_gguf_qwen35.Storage.F32)
    else:
        vision_gguf.write_model(folder / "tiny-F32.gguf", reference)
    settings = vision.PREPROCESSOR
    mean, std = settings["image_mean"], settings["image_std"]
    vision_gguf.write_tower(folder / "mmproj-tiny-F16.gguf", reference, mean, std)
    return folder, reference


def built(files, **options):
    checkpoint = files.checkpoint
    spec = spec_for(files.config, files.metadata, checkpoint.tensors)
    return build_model(spec, checkpoint, dtype=torch.float32, device="cpu", **options)


@pytest.mark.parametrize("packed", [False, True])
def test_gguf_and_its_tower(packed, ggufs, tmp_path):
    if packed and not ops.can_pack("cpu"):
        pytest.skip("no native kernels")
    folder, reference = ggufs
    files = open_model(folder)
    assert files.projector == folder / "mmproj-tiny-F16.gguf"
    # The file keeps no bounds of its own; those of the other tests make small pictures.
    bounds = vision.PREPROCESSOR["size"]
    processor = vision.processor_for(files, "image")
    processor = replace(
        processor, min_pixels=bounds["shortest_edge"], max_pixels=bounds["longest_edge"]
    )
    images = [picture(*size) for size in SIZES[:2]]
    seen = [vision.seen(processor, image) for image in images]
    prompt = vision.prompt_of([words(5, 1), [200], seen[0], words(3, 2), seen[1], words(4, 3)],
                              tmp_path)  # fmt: skip
    driver = VisionDriver(built(files, packed=packed), processor)
    driver.add("r", prompt)
    expected = vision.reference_logits(reference, prompt.ids, images)
    # Packed weights in fp16 meet activations that are rounded likewise on some CPUs.
    bound = 2e-2 if packed else 1e-4
    torch.testing.assert_close(driver.run(prompt.ids, 16), expected, rtol=0, atol=bound)


def test_gguf_without_its_tower_reads_text(ggufs, tmp_path):
    folder, reference = ggufs
    (tmp_path / "alone.gguf").symlink_to(folder / "tiny-F32.gguf")
    files = open_model(tmp_path / "alone.gguf")
    assert files.projector is None and vision.processor_for(files, "image") is None
    model, ids = built(files), words(40, 2)
    close(Driver(model).run(ids, 16), vision.reference_logits(reference, ids, []))
    named = open_model(tmp_path / "alone.gguf", str(folder / "mmproj-tiny-F16.gguf"))
    assert built(named).spec.vision is not None


def test_towers_that_do_not_fit(ggufs, folder):
    ggufs, _ = ggufs
    with pytest.raises(ConfigError, match="another model"):
        open_model(ggufs / "tiny-F32.gguf", str(ggufs / "tiny-F32.gguf"))
    with pytest.raises(ConfigError, match="no such file"):
        open_model(ggufs / "tiny-F32.gguf", "missing.gguf")
    with pytest.raises(ConfigError, match="brings its own"):
        open_model(folder, str(ggufs / "mmproj-tiny-F16.gguf"))
