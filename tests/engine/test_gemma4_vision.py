"""A tiny Gemma 4 through the whole engine: pictures that are read in one step each."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pagoda.base.errors import CheckpointError, ConfigError, RequestError
from pagoda.config.engine import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    MediaConfig,
    ModelConfig,
)
from pagoda.config.engine import SchedulerConfig as Scheduling
from pagoda.config.modality import MODALITIES
from pagoda.core.messages import AddRequest
from pagoda.core.sampling import SamplingParams
from pagoda.engine.core import EngineCore
from pagoda.engine.media import MediaInput, attach_media, place_media
from pagoda.engine.startup import start_engine
from pagoda.text.images.gemma4 import Gemma4ImageProcessor
from pagoda.text.media.base import Medium
from tests.engine.running import run, tokens
from tests.models import gemma4_vision as vision
from tests.models import tiny
from tests.models.vision import VisionPrompt, picture
from tests.unit.arch.test_gemma4 import GEMMA4_26B_A4B, GEMMA4_31B

COUNT = 6
SIZES = [("gradient", 300, 300), ("noise", 97, 203), ("letters", 310, 51)]
"""64, 60 and 60 tokens, with blocks of 16."""


@pytest.fixture(scope="module")
def reference():
    return vision.make(**vision.EXPERTS)


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gemma4")
    vision.save(reference, folder)
    return folder


def start(folder: Path, batched: int = 128, media: Any = None, **model: Any) -> EngineCore:
    config = EngineConfig(
        model=ModelConfig(model=str(folder), **{"dtype": "float32", **model}),
        cache=CacheConfig(num_gpu_blocks_override=300),
        scheduler=Scheduling(max_num_batched_tokens=batched, max_num_seqs=4),
        device=DeviceConfig("cpu", threads=1),
        media=media or MediaConfig(),
    )
    return start_engine(config, lambda message: None)[0]


def words(count: int, seed: int) -> list[int]:
    return [token % 200 for token in tiny.random_ids(count, seed=seed)]


def prompt(folder: Path, sizes: list, lead: int = 9) -> VisionPrompt:
    pieces: list[Any] = [words(lead, 1)]
    for number, image in enumerate(vision.processed(folder, [picture(*size) for size in sizes])):
        pieces += [image, words(12, 2 + number)]
    return vision.prompt_of(pieces, folder)


def request(req_id: str, given: VisionPrompt) -> AddRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=COUNT, ignore_eos=True)
    return AddRequest(
        req_id=req_id, prompt_token_ids=given.ids, media=given.items, sampling=sampling
    )


def expected(reference, given: VisionPrompt, sizes: list) -> list[int]:
    ids = list(given.ids)
    for _ in range(COUNT):
        logits = vision.reference_logits(reference, ids, [picture(*size) for size in sizes])
        ids.append(int(logits[-1].argmax()))
    return ids[len(given.ids) :]


@pytest.mark.parametrize("batched", [70, 100, 512])
def test_replies_equal_transformers_in_steps_of_any_size(batched, folder, reference):
    core = start(folder, batched)
    given = prompt(folder, SIZES)
    assert [item.length for item in given.items] == [64, 60, 60]
    (deltas,) = run(core, request("r", given)).values()
    assert tokens(deltas) == expected(reference, given, SIZES)


def test_neighbours_and_prefixes_change_nothing(folder, reference):
    """A cached prefix ends within the picture."""
    core = start(folder)
    text, given = VisionPrompt(words(30, 5), []), prompt(folder, SIZES[1:2])
    found = run(core, request("text", text), request("seen", given))
    assert tokens(found["text"]) == expected(reference, text, [])
    assert tokens(found["seen"]) == expected(reference, given, SIZES[1:2])
    end = given.items[0].start + given.items[0].length
    again = VisionPrompt(given.ids[:end] + [202, *words(9, 7)], given.items)
    (deltas,) = run(core, request("again", again)).values()
    assert deltas[0].num_cached_tokens == 64 < end
    assert tokens(deltas) == expected(reference, again, SIZES[1:2])


def test_a_step_must_have_room_for_a_picture(folder):
    with pytest.raises(ConfigError, match="image-max-tokens 63 is more than"):
        start(folder, 62, MediaConfig(image_max_tokens=63))
    core = start(folder, 62)
    (deltas,) = run(core, request("r", prompt(folder, SIZES[:1]))).values()
    assert deltas[-1].bad_request and "64 tokens, and a step no more than 62" in deltas[-1].error


class _Tokenizer:
    known = {"<|image|>": 7, "<|image>": 8, "<image|>": 9}

    def encode(self, text: str, **options: bool) -> list[int]:
        return [self.known[text]] if text in self.known else [1, 2]


def test_a_picture_has_marks_around_it(folder):
    processor = Gemma4ImageProcessor(16, 3, 70)
    images = MediaInput(MODALITIES["image"], processor, _Tokenizer())
    pieces = vision.processed(folder, [picture(*size) for size in SIZES[:2]])
    seen = [Medium((piece,)) for piece in pieces]
    ids, placed = place_media([1, 7, 2, 7], {images: seen})
    assert ids == [1, 8, *[7] * 64, 9, 2, 8, *[7] * 60, 9]
    given = AddRequest(req_id="r", prompt_token_ids=ids)
    attach_media(given, placed)
    where = [(item.start, item.length, item.grid) for item in given.media]
    assert where == [(2, 64, None), (69, 60, None)]
    with pytest.raises(RequestError, match="2 places for 1 pictures"):
        place_media([7, 7], {images: seen[:1]})

    class Without(_Tokenizer):
        known = {"<|image|>": 7}

    with pytest.raises(CheckpointError, match=r"no token '<\|image>'"):
        MediaInput(MODALITIES["image"], processor, Without())


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(GEMMA4_31B, id="31B", marks=pytest.mark.exhaustive),
        pytest.param(GEMMA4_26B_A4B, id="26B-A4B", marks=pytest.mark.exhaustive),
    ],
)
def test_real_sizes_with_random_weights(config, tmp_path):
    """With a layer of each kind, and two of the tower's."""
    kinds = ["sliding_attention", "full_attention"]
    config = {
        **config,
        "text_config": {**config["text_config"], "num_hidden_layers": 2, "layer_types": kinds},
        "vision_config": {**config["vision_config"], "num_hidden_layers": 2},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    core = start(tmp_path, 320, load_format="dummy", dtype="auto", max_model_len=512)
    images = vision.processed(tmp_path, [picture("letters", 300, 280)])
    assert images[0].num_tokens == 272  # 16 rows of 17
    given = vision.prompt_of([words(5, 1), images[0], words(5, 2)], tmp_path)
    (deltas,) = run(core, request("r", given)).values()
    assert len(tokens(deltas)) == COUNT
    assert torch.isfinite(core.executor.runner.media.encoded(given.items[0])).all()
