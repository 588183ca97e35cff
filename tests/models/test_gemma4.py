"""Gemma 4 equal to transformers' on tiny random checkpoints and pictures of any size."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.kernels import ops
from pagoda.models.loader import build_model
from pagoda.planner.memory.tensors import parameter_count
from pagoda.runtime.media import finish
from pagoda.text.images.gemma4 import Gemma4ImageProcessor
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model
from tests.models import gemma4_gguf, tiny
from tests.models import gemma4_vision as vision
from tests.models.vision import VisionDriver, picture, seen
from tests.unit.arch.test_gemma4 import GGUF

SIZES = [
    ("gradient", 300, 300), ("noise", 97, 203), ("letters", 310, 51), ("noise", 5, 700),
    ("gradient", 1500, 4),
]  # fmt: skip
# Random towers magnify the order of sums: transformers in fp32 is itself up to 3e-4 off its own
# fp64, and what it says with AVX-512 is as far from what it says with AVX2.
MAGNIFIED = 3e-4
# The small one's fp32 is 3e-4 off its fp64, with which it is compared.
SMALL_MAGNIFIED = 6e-4


@pytest.fixture(
    scope="module",
    params=[vision.TEXT, vision.EXPERTS, vision.SMALL],
    ids=["dense", "experts", "small"],
)
def reference(request):
    return vision.make(**request.param)


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma4")
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


def close(found: torch.Tensor, expected: torch.Tensor, bound: float = 1e-4) -> None:
    assert expected.std() > 0.3  # else a fault could hide below the bound
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=bound)


@pytest.mark.parametrize("size", SIZES)
def test_pixels_and_grid_are_those_of_transformers(size, folder):
    image = picture(*size)
    theirs = vision.processed_by_transformers([image])
    processor = processor_for(open_model(folder), "image")
    mine = seen(processor, image)
    patches, (_, rows, columns) = processor.patches(mine.values)
    count = len(patches)
    assert mine.num_tokens == count // 9 <= vision.MAX_TOKENS
    pixels, places = theirs["pixel_values"][0], theirs["image_position_ids"][0]
    np.testing.assert_allclose(patches, pixels[:count].numpy(), rtol=0, atol=1e-3)
    assert places[:count].tolist() == [[x, y] for y in range(rows) for x in range(columns)]
    assert (places[count:] == -1).all()


@pytest.mark.parametrize("size", SIZES[:4])
def test_the_tower_equals_transformers(size, reference, model, folder):
    image = picture(*size)
    theirs = vision.processed_by_transformers([image])
    with torch.inference_mode():
        (expected,) = reference.get_image_features(**theirs).pooler_output
        processor = processor_for(open_model(folder), "image")
        pixels = seen(processor, image).values
        patches, grid = processor.patches(pixels)
        (found,) = finish(model.encoders["image"](torch.from_numpy(patches), grid))
    close(found, expected)


@pytest.mark.parametrize("packed", [False, True])
def test_logits_equal(packed, reference, folder, tmp_path):
    """In one step, and in steps that end where pictures do."""
    if packed and not ops.can_pack("cpu"):
        pytest.skip("no native kernels")
    images = [picture(*size) for size in SIZES[:3]]
    prompt = vision.prompt_of(around(images, folder), tmp_path)
    ids = prompt.ids + words(6, 11)
    # Experts of transformers do not run in fp64.
    routed = reference.config.text_config.enable_moe_block
    expected = (vision.reference_logits if routed else vision.exact_logits)(reference, ids, images)
    loaded = tiny.load(folder, packed=packed)
    for cuts in ([], [item.start for item in prompt.items],
                 [item.start + item.length for item in prompt.items]):  # fmt: skip
        driver = driver_of(loaded, folder)
        driver.add("r", prompt)
        edges = [0, *cuts, len(prompt.ids), *range(len(prompt.ids) + 1, len(ids) + 1)]
        found = [driver.step({"r": ids[a:b]})["r"] for a, b in pairwise(edges) if a < b]
        small = reference.config.text_config.num_kv_shared_layers > 0
        close(torch.cat(found), expected, SMALL_MAGNIFIED if small else MAGNIFIED)


def test_pictures_look_both_ways(model, folder, tmp_path, reference):
    """Else the test above would show nothing: a step that ends in a picture gives other logits."""
    image = picture(*SIZES[0])
    prompt = vision.prompt_of([words(5, 1), *vision.processed(folder, [image])], tmp_path)
    driver = driver_of(model, folder)
    driver.add("r", prompt)
    expected = vision.reference_logits(reference, prompt.ids, [image])
    apart = (driver.run(prompt.ids, 20) - expected).abs().max()
    if model.spec.vision.both_ways:
        assert apart > 0.01
    else:  # a small model looks at them as at text
        assert apart < MAGNIFIED


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


def test_every_parameter_is_counted(reference, model):
    head = "lm_head.weight"  # tied
    state = reference.state_dict()
    assert parameter_count(model.spec) == sum(x.numel() for n, x in state.items() if n != head)


@pytest.mark.parametrize("kind", [vision.TEXT, vision.SMALL], ids=["dense", "small"])
def test_a_gguf_with_its_tower_beside_it(kind, tmp_path):
    """As the converter writes them, with tables of the published size."""
    model = vision.make(**kind, num_positions=10240)
    gemma4_gguf.write_tower(tmp_path / "mmproj-F16.gguf", model)
    path = tmp_path / "model.gguf"
    gemma4_gguf.write_model(path, model)
    files = open_model(path)
    processor = processor_for(files, "image")
    assert processor == Gemma4ImageProcessor(16, 3, 280)
    spec = spec_for(None, files.metadata, files.checkpoint.tensors)
    loaded = build_model(spec, files.checkpoint, dtype=torch.float32, device="cpu")
    few = processor.limited({"image": vision.MAX_TOKENS})
    image = picture(*SIZES[1])
    prompt = vision.prompt_of([words(5, 1), seen(few, image), words(7, 2)], tmp_path)
    driver = VisionDriver(loaded, few)
    driver.add("r", prompt)
    expected = vision.reference_logits(model, prompt.ids, [image])
    close(driver.run(prompt.ids, len(prompt.ids)), expected, MAGNIFIED)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"projector_type": "gemma4uv"}, "is a 'gemma4uv', and Gemma 4's"),
        ({"projection_dim": 65}, "projection_dim must be the language model's 64"),
        ({"embedding_length": 34}, "embedding_length is 34, which 2 heads"),
    ],
)
def test_towers_of_others_are_named(changes, message):
    tower = {
        "projector_type": "gemma4v", "projection_dim": 64, "embedding_length": 32,
        "attention.head_count": 2, "block_count": 2, "feed_forward_length": 48, "patch_size": 16,
    }  # fmt: skip
    metadata = {f"clip.vision.{name}": value for name, value in {**tower, **changes}.items()}
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        spec_for(None, GGUF | metadata, ())
