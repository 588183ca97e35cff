"""A tiny Gemma 3 through the whole engine: pictures of one size, each read in one step."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagoda.base.errors import RequestError
from pagoda.config.engine import CacheConfig, DeviceConfig, EngineConfig, MediaConfig, ModelConfig
from pagoda.config.engine import SchedulerConfig as Scheduling
from pagoda.config.modality import MODALITIES
from pagoda.core.messages import AddRequest
from pagoda.core.sampling import SamplingParams
from pagoda.engine.core import EngineCore
from pagoda.engine.media import MediaInput, place_media, write_media
from pagoda.engine.startup import start_engine
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model
from tests.engine.running import run, tokens
from tests.models import gemma3_vision as vision
from tests.models import tiny
from tests.models.vision import VisionPrompt, picture

COUNT = 6
SIZES = [("gradient", 300, 300), ("noise", 97, 203)]


@pytest.fixture(scope="module")
def reference():
    return vision.make()


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gemma3")
    vision.save(reference, folder)
    return folder


def start(folder: Path, batched: int) -> EngineCore:
    config = EngineConfig(
        model=ModelConfig(model=str(folder), dtype="float32"),
        cache=CacheConfig(num_gpu_blocks_override=300),
        scheduler=Scheduling(max_num_batched_tokens=batched, max_num_seqs=4),
        device=DeviceConfig("cpu", threads=1),
        media=MediaConfig(),
    )
    return start_engine(config, lambda message: None)[0]


def words(count: int, seed: int) -> list[int]:
    return [token % 200 for token in tiny.random_ids(count, seed=seed)]


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


@pytest.mark.parametrize("batched", [12, 512])
def test_replies_equal_transformers(batched, folder, reference):
    """In one step, and in steps that would end within a picture; beside a text, and behind a
    prefix that ends within a picture."""
    core = start(folder, batched)
    images = vision.processed(folder, [picture(*size) for size in SIZES])
    pieces: list[Any] = [words(9, 1), images[0], words(13, 2), images[1], words(5, 3)]
    given, text = vision.prompt_of(pieces, folder), VisionPrompt(words(30, 5), [])
    found = run(core, request("seen", given), request("text", text))
    assert tokens(found["seen"]) == expected(reference, given, SIZES)
    assert tokens(found["text"]) == expected(reference, text, [])
    begin = given.items[1].start
    again = VisionPrompt(given.ids[: begin + 5] + words(9, 7), given.items)
    (deltas,) = run(core, request("again", again)).values()
    assert deltas[0].num_cached_tokens > given.items[0].start
    assert tokens(deltas) == expected(reference, again, SIZES)


class _Tokenizer:
    """Characters, but for the model's own tokens."""

    known = {"<image_soft_token>": 7, "<start_of_image>": 8, "<end_of_image>": 9}

    def encode(self, text: str, **options: bool) -> list[int]:
        for known, token in self.known.items():
            if known in text:
                before, _, after = text.partition(known)
                return [*self.encode(before), token, *self.encode(after)]
        return [ord(letter) for letter in text]


def test_what_a_template_writes_becomes_a_picture(folder):
    processor = processor_for(open_model(folder), "image")
    images = MediaInput(MODALITIES["image"], processor, _Tokenizer())
    assert images.placeholder == "<start_of_image>"
    found = {images: [processor.process(np.asarray(picture(*size))[None]) for size in SIZES]}
    written = write_media("a<start_of_image>b<start_of_image>", found)
    ids, placed = place_media(_Tokenizer().encode(written), found)
    seen = [10, 10, 8, 7, 7, 7, 7, 9, 10, 10]
    assert ids == [ord("a"), *seen, ord("b"), *seen]
    assert [one.start for one in placed] == [4, 15]
    with pytest.raises(RequestError, match="3 places for 2 pictures"):
        write_media("<start_of_image>" * 3, found)
