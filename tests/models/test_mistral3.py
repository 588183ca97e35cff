"""Mistral Small 3.1 and its tower equal to transformers' on tiny random checkpoints and
pictures of any size; its language model alone is compared beside all others."""

import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pagoda.arch.registry import spec_for
from pagoda.config.modality import MODALITIES
from pagoda.engine.media import MediaInput, place_media
from pagoda.engine.served.text_side import processors_of
from pagoda.kernels import ops
from pagoda.models.loader import build_model
from pagoda.planner.memory.tensors import model_tensors, parameter_count
from pagoda.runtime.media import finish
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model
from tests.models import mistral3_vision as vision
from tests.models import tiny
from tests.models.test_qwen3_vl import close, words
from tests.models.vision import VisionDriver, picture, seen

SIZES = [("gradient", 30, 30), ("noise", 97, 40), ("letters", 20, 310), ("noise", 11, 5)]
"""Of 4 x 4 tokens, of 3 x 8 and 8 x 1 once they are no longer than 60 pixels, and of 1 x 2."""


@pytest.fixture(scope="module")
def reference():
    return vision.make()


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistral3")
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
        pieces += [seen(processor(folder), image), words(7 + number, 2 + number)]
    return pieces


@pytest.mark.parametrize("size", SIZES)
def test_pixels_and_the_tower_equal_transformers(size, reference, model, folder):
    image = picture(*size)
    theirs = vision.processed_by_transformers([image])
    mine = seen(processor(folder), image)
    patches, grid = processor(folder).patches(mine.values)
    (height, width), channels = theirs["image_sizes"][0].tolist(), theirs["pixel_values"][0]
    assert grid == (1, height // 4, width // 4)
    assert (mine.row, mine.num_tokens) == (width // 8, height // 8 * (width // 8 + 1) - 1)
    own = torch.from_numpy(patches).view(grid[1] // 2, grid[2] // 2, 2, 2, 3, 4, 4)
    own = own.permute(4, 0, 2, 5, 1, 3, 6).reshape(3, height, width)
    torch.testing.assert_close(own, channels, rtol=0, atol=1e-5)
    with torch.inference_mode():
        expected = reference.model.get_image_features(**theirs).pooler_output[0]
        (found,) = finish(model.encoders["image"](torch.from_numpy(patches), grid))
    close(found, expected)


def test_a_picture_of_too_many_tokens_becomes_smaller(folder):
    for limit, size in ((26, (3, 8)), (25, (3, 7)), (1, (1, 1))):
        (piece,) = (
            processor(folder)
            .limited({"image": limit})
            .process(np.asarray(picture(*SIZES[1]))[None])
            .pieces
        )
        assert (piece.values.shape[1] // 8, piece.row) == size
        assert piece.num_tokens <= limit


class _Tokenizer:
    known = {"[IMG]": 7, "[IMG_BREAK]": 8, "[IMG_END]": 9}

    def encode(self, text: str, **options: bool) -> list[int]:
        return [self.known.get(part, 1) for part in re.findall(r"\[\w+\]|.", text)]


def test_prompts_are_those_of_transformers(folder):
    """Rows that end in a token of their own, the last one in another (processing_pixtral.py)."""
    image = picture(*SIZES[1])
    row = "[IMG]" * 8
    text = f"{row}[IMG_BREAK]{row}[IMG_BREAK]{row}[IMG_END]"
    images = MediaInput(MODALITIES["image"], processor(folder), _Tokenizer())
    found = {images: [images.take(np.asarray(image), {}, {"image": 1000})]}
    ids, (placed,) = place_media(_Tokenizer().encode("ab[IMG]c"), found)
    assert ids == _Tokenizer().encode(f"ab{text}c")
    assert (placed.start, placed.piece.num_tokens) == (2, len(ids) - 4)


@pytest.mark.parametrize("packed", [False, True])
def test_logits_equal(packed, reference, folder, tmp_path):
    """Whole, and in steps that end within rows, before and behind what stands between them."""
    if packed and not ops.can_pack("cpu"):
        pytest.skip("no native kernels")
    images = [picture(*size) for size in SIZES]
    prompt = vision.prompt_of(around(images, folder), tmp_path)
    ids = prompt.ids + words(6, 11)
    assert ids.count(vision.BREAK) == 3 + 2 + 7
    expected = vision.reference_logits(reference, ids, images)
    loaded = tiny.load(folder, packed=packed)
    for chunk in (500, 7):
        driver = VisionDriver(loaded, processor(folder))
        driver.add("r", prompt)
        close(driver.run(ids, chunk), expected)


def test_requests_with_and_without_pictures_share_steps(reference, model, folder, tmp_path):
    driver = VisionDriver(model, processor(folder))
    images = {"a": [picture(*SIZES[0])], "text": [], "b": [picture(*size) for size in SIZES[1:3]]}
    prompts = {r: vision.prompt_of(around(own, folder), tmp_path) for r, own in images.items()}
    for req, prompt in prompts.items():
        driver.add(req, prompt)
    found = driver.step({req: prompt.ids for req, prompt in prompts.items()})
    for req, prompt in prompts.items():
        close(found[req], vision.reference_logits(reference, prompt.ids, images[req]))


def test_every_parameter_is_counted(reference, model):
    assert parameter_count(model.spec) == sum(p.numel() for p in reference.parameters())
    assert model.nbytes == 4 * parameter_count(model.spec)
    planned = {tensor.name for tensor in model_tensors(model.spec)}
    assert planned == {rule.param for rule in model.spec.expanded_weights()}


def test_a_checkpoint_that_lost_its_tower_reads_text(reference, folder, tmp_path):
    """As some who quantize the language model leave it."""
    vision.save(reference, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    kept = {name: x for name, x in tensors.items() if name.startswith("language_model.")}
    assert 0 < len(kept) < len(tensors)
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    loaded = tiny.load(tmp_path)
    assert loaded.encoders == {}
    assert processors_of(open_model(folder)).keys() == {"image"}
    assert not processors_of(open_model(tmp_path))


@pytest.mark.parametrize("architecture", ["mistral3", "llama"])
def test_a_gguf_with_its_tower_beside_it(architecture, tmp_path):
    scaled = {"model_type": "ministral3", **tiny.MINISTRAL3}
    reference = vision.make(**(scaled if architecture == "mistral3" else {}))
    vision.write_tower(tmp_path / "mmproj-F32.gguf", reference)
    path = tmp_path / "model.gguf"
    vision.write_model(path, reference, architecture)
    files = open_model(path)
    assert files.projector is not None
    spec = spec_for(None, files.metadata, files.checkpoint.tensors)
    loaded = build_model(spec, files.checkpoint, dtype=torch.float32, device="cpu")
    images = [picture(*size) for size in SIZES[:2]]
    pieces = [words(5, 1)]
    for image in images:
        pieces += [seen(processor_for(files, "image"), image), words(4, 2)]
    prompt = vision.prompt_of(pieces, tmp_path)
    driver = VisionDriver(loaded, processor_for(files, "image"))
    driver.add("r", prompt)
    close(driver.run(prompt.ids, 16), vision.reference_logits(reference, prompt.ids, images))
