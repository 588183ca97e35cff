"""Llama 4's vision transformer equal to transformers' on tiny random checkpoints. Its preprocessing
needs torchvision in transformers, so that pixels are held against torch's own resizing."""

import json

import gguf
import numpy as np
import pytest
import torch
from transformers import Llama4Config, Llama4ForCausalLM, Llama4ForConditionalGeneration

from pagoda.arch.registry import spec_for
from pagoda.base.errors import CheckpointError, RequestError, UnsupportedModelError
from pagoda.models.loader import build_model
from pagoda.planner.memory.tensors import model_tensors, parameter_count
from pagoda.runtime.media import finish
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model
from tests.models import tiny, tiny_gguf
from tests.models.test_qwen3_vl import close, words
from tests.models.vision import IMAGE, VisionDriver, picture, prompt_of

_SIDE = 56
VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
    "vision_output_dim": 48, "image_size": _SIDE, "patch_size": 14, "projector_input_dim": 48,
    "projector_output_dim": 48, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}  # fmt: skip
PREPROCESSOR = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "max_patches": 4,
                "size": {"height": _SIDE, "width": _SIDE}}  # fmt: skip
# Width and height; rows and columns of tiles; height and width within them.
FITS = [
    ((56, 56), (1, 1), (56, 56)), ((100, 30), (1, 2), (30, 100)), ((112, 57), (2, 2), (57, 112)),
    ((20, 30), (1, 1), (56, 37)), ((900, 90), (1, 4), (22, 224)),
]  # fmt: skip


def make(theta: float = 500.0):
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": theta}
    config = Llama4Config(
        text_config={**tiny.SIZES, **tiny.LLAMA4, "max_position_embeddings": 512},
        vision_config={**VISION, "rope_parameters": rope},
        image_token_index=IMAGE,
    )
    model = Llama4ForConditionalGeneration(config).eval()
    tiny.randomize(model)
    return model


@pytest.fixture(scope="module")
def reference():
    return make()


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama4")
    reference.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    (folder / "processor_config.json").write_text(json.dumps({"patch_size": 14}))
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return tiny.load(folder)


def medium(processor, image):
    return processor.process(np.asarray(image)[None])


def pixels(processor, piece) -> torch.Tensor:
    """[3, side, side], as transformers takes them."""
    patches, grid = processor.patches(piece.values)
    assert grid == (1, 4, 4)
    own = torch.from_numpy(patches).view(2, 2, 2, 2, 3, 14, 14).permute(4, 0, 2, 5, 1, 3, 6)
    return own.reshape(3, _SIDE, _SIDE)


@pytest.mark.parametrize(("size", "grid", "within"), FITS)
def test_tiles(size, grid, within, folder):
    processor, image = processor_for(open_model(folder), "image"), picture("gradient", *size)
    pieces = medium(processor, image).pieces
    values = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None]

    def resized(height, width):
        whole = torch.nn.functional.interpolate(
            values, (height, width), mode="bilinear", antialias=True
        )
        # In bfloat16 (image_processing_llama4.py).
        return (whole.bfloat16() * (1 / 255) - 0.5).div(0.5).float()

    rows, columns = grid
    canvas = torch.full((1, 3, rows * _SIDE, columns * _SIDE), -1.0)
    canvas[:, :, : within[0], : within[1]] = resized(*within)
    tiles = canvas.view(3, rows, _SIDE, columns, _SIDE).permute(1, 3, 0, 2, 4).flatten(0, 1)
    if len(tiles) > 1:
        tiles = torch.cat([tiles, resized(_SIDE, _SIDE)])
    found = torch.stack([pixels(processor, piece) for piece in pieces])
    # One of 255 levels, where either rounds.
    torch.testing.assert_close(found, tiles, rtol=0, atol=0.012)


def test_prompts_and_limits(folder):
    processor = processor_for(open_model(folder), "image")
    token = "<|patch|>"
    rows = f"{token}<|tile_x_separator|>{token}<|tile_y_separator|>" * 2
    image = picture("gradient", 112, 57)
    found = medium(processor, image)
    assert found.text == f"<|image_start|>{rows}<|image|>{token}<|image_end|>"
    assert [piece.num_tokens for piece in found.pieces] == [4] * 5
    single = medium(processor.limited({"image": 8}), image)
    assert single.text == f"<|image_start|><|image|>{token}<|image_end|>"
    with pytest.raises(RequestError, match="at least 4 tokens"):
        processor.limited({"image": 3})


def test_the_tower_and_logits_equal(reference, model, folder, tmp_path):
    processor = processor_for(open_model(folder), "image")
    images = [medium(processor, picture(*size)) for size in (("noise", 100, 30), ("noise", 40, 40))]
    pieces = [piece for image in images for piece in image.pieces]
    values = torch.stack([pixels(processor, piece) for piece in pieces])
    with torch.inference_mode():
        features = reference.get_image_features(values).last_hidden_state
        expected = reference.multi_modal_projector(features)
        for piece, embeddings in zip(pieces, expected, strict=True):
            patches, grid = processor.patches(piece.values)
            (found,) = finish(model.encoders["image"](torch.from_numpy(patches), grid))
            close(found, embeddings)
    parts = [words(9, 1), *images[0].pieces, words(7, 2), *images[1].pieces, words(8, 3)]
    prompt = prompt_of(parts, tmp_path)
    ids = torch.tensor([prompt.ids])
    with torch.inference_mode():
        # transformers 5.24 fails on its own output's fields, once these are computed so.
        embeddings = reference.get_input_embeddings()(ids)
        embeddings[ids == IMAGE] = expected.flatten(0, 1)
        logits = reference.language_model(inputs_embeds=embeddings).logits[0]
    for chunk in (100, 7):
        driver = VisionDriver(model, processor)
        driver.add("r", prompt)
        close(driver.run(prompt.ids, chunk), logits)


def test_every_parameter_is_counted(reference, model):
    assert parameter_count(model.spec) == sum(p.numel() for p in reference.parameters())
    assert model.nbytes == 4 * parameter_count(model.spec)
    planned = {tensor.name for tensor in model_tensors(model.spec)}
    assert planned == {rule.param for rule in model.spec.expanded_weights()}


def _write_tower(path, model) -> None:
    config = model.config.vision_config
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(gguf.VisionProjectorType.LLAMA4)
    writer.add_vision_projection_dim(model.config.text_config.hidden_size)
    writer.add_vision_image_size(_SIDE)
    writer.add_vision_patch_size(14)
    writer.add_vision_embedding_length(config.hidden_size)
    writer.add_vision_feed_forward_length(config.intermediate_size)
    writer.add_vision_block_count(config.num_hidden_layers)
    writer.add_vision_head_count(config.num_attention_heads)
    writer.add_vision_image_mean([0.5] * 3)
    writer.add_vision_image_std([0.5] * 3)
    writer.add_vision_attention_layernorm_eps(1e-5)
    writer.add_vision_use_gelu(True)
    writer.add_vision_projector_scale_factor(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 3)
    for name, weight in model.state_dict().items():
        name = name.removeprefix("model.") if name.startswith("model.vision") else name
        stored = names.get_name(name, (".weight", ".bias"))
        if "class_embedding" in name:
            stored = "v.class_embd"
        elif "positional_embedding" in name:
            stored = "v.position_embd.weight"
        elif "multi_modal_projector" in name:
            stored = "mm.model.fc.weight"
        elif name.startswith("vision") and "post_attention_layernorm" in name:
            stored = stored.replace("attn_post_norm", "ln2")  # the package's name is Gemma 4's
        if stored is not None and ("vision" in name or "projector" in name):
            writer.add_tensor(stored, np.ascontiguousarray(weight.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_with_its_tower_beside_it(tmp_path):
    """Whose base of frequencies is the published one."""
    reference = make(theta=10000.0)
    _write_tower(tmp_path / "mmproj-F32.gguf", reference)
    text = Llama4ForCausalLM(reference.config.text_config)
    text.load_state_dict(reference.language_model.state_dict())
    tiny_gguf.write(tmp_path / "model.gguf", text, lambda name: tiny_gguf.Storage.F32)
    files = open_model(tmp_path / "model.gguf")
    spec = spec_for(None, files.metadata, files.checkpoint.tensors)
    loaded = build_model(spec, files.checkpoint, dtype=torch.float32, device="cpu")
    processor = processor_for(files, "image")
    (piece,) = medium(processor, picture("noise", 40, 40)).pieces
    patches, grid = processor.patches(piece.values)
    with torch.inference_mode():
        features = reference.get_image_features(pixels(processor, piece)[None]).last_hidden_state
        expected = reference.multi_modal_projector(features)[0]
        (found,) = finish(loaded.encoders["image"](torch.from_numpy(patches), grid))
    close(found, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"projector_input_dim": 32}, "projector_input_dim must be projector_output_dim, 48"),
        ({"image_size": 70}, "gives 5 patches a side, no multiple of 2"),
        ({"num_attention_heads": 16}, "16 heads cannot share"),
    ],
)
def test_other_towers_are_named(changes, message, reference):
    config = {**reference.config.to_dict(), "architectures": ["Llama4ForConditionalGeneration"]}
    tower = {**config["vision_config"], **changes}
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        spec_for({**config, "vision_config": tower}, {}, ())
