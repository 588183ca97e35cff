"""A tiny Gemma 3n through the whole engine: pictures beside texts, cut by steps, and as a template
writes them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagoda.arch.read import Reader
from pagoda.base.errors import CheckpointError, RequestError, UnsupportedModelError
from pagoda.config.engine import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from pagoda.config.engine import SchedulerConfig as Scheduling
from pagoda.config.modality import MODALITIES
from pagoda.core.messages import AddRequest
from pagoda.core.sampling import SamplingParams
from pagoda.engine.media import MediaInput, place_media, write_media
from pagoda.engine.startup import start_engine
from pagoda.text.images.gemma3n import from_config
from tests.engine.running import run, tokens
from tests.models import gemma3n_vision as vision
from tests.models import tiny
from tests.models.vision import VisionPrompt, picture

COUNT = 4
TEXTS = 200
"""Tokens of text; those behind are the embedders' of pictures and sound."""
SIZES = [("gradient", 300, 300), ("noise", 97, 203)]


@pytest.fixture(scope="module")
def reference():
    return vision.Reference()


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gemma3n")
    vision.save(reference.model, folder)
    return folder


def words(count: int, seed: int) -> list[int]:
    return [token % 200 for token in tiny.random_ids(count, seed=seed)]


def request(req_id: str, given: VisionPrompt) -> AddRequest:
    sampling = SamplingParams(
        temperature=0.0, max_tokens=COUNT, ignore_eos=True, allowed_token_ids=list(range(TEXTS))
    )
    return AddRequest(
        req_id=req_id, prompt_token_ids=given.ids, media=given.items, sampling=sampling
    )


def expected(reference, given: VisionPrompt, sizes: list) -> list[int]:
    ids = list(given.ids)
    for _ in range(COUNT):
        logits = reference.logits(ids, [picture(*size) for size in sizes])
        ids.append(int(logits[-1, :TEXTS].argmax()))
    return ids[len(given.ids) :]


def test_replies_equal_transformers(folder, reference):
    """In steps that end within a picture; beside a text, and behind a prefix that ends within a
    picture."""
    config = EngineConfig(
        model=ModelConfig(model=str(folder), dtype="float32"),
        cache=CacheConfig(num_gpu_blocks_override=300),
        scheduler=Scheduling(max_num_batched_tokens=200, max_num_seqs=4),
        device=DeviceConfig("cpu", threads=1),
    )
    core = start_engine(config, lambda message: None)[0]
    images = vision.processed(folder, [picture(*size) for size in SIZES])
    pieces: list[Any] = [words(9, 1), images[0], words(13, 2), images[1], words(5, 3)]
    given, text = vision.prompt_of(pieces, folder), VisionPrompt(words(30, 5), [])
    found = run(core, request("seen", given), request("text", text))
    assert tokens(found["seen"]) == expected(reference, given, SIZES)
    assert tokens(found["text"]) == expected(reference, text, [])
    begin = given.items[1].start
    again = VisionPrompt(given.ids[: begin + 259] + words(9, 7), given.items)
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


def test_what_a_template_writes_becomes_a_picture():
    processor = from_config(Reader(vision.PREPROCESSOR, "preprocessor_config.json"))
    images = MediaInput(MODALITIES["image"], processor, _Tokenizer())
    found = {images: [processor.process(np.asarray(picture(*size))[None]) for size in SIZES]}
    written = write_media(f"a{images.placeholder}b{images.placeholder}", found)
    ids, placed = place_media(_Tokenizer().encode(written), found)
    seen = [10, 10, 8, *[7] * 256, 9, 10, 10]
    assert ids == [ord("a"), *seen, ord("b"), *seen]
    # The word that ends a picture is its last token.
    assert [(one.start, one.piece.num_tokens) for one in placed] == [(4, 257), (267, 257)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": {"height": 300, "width": 300}}, "one of 256, 512 and 768"),
        ({"size": {"height": 256, "width": 512}}, "must be the width"),
        ({"size": {"height": 1024, "width": 1024}}, "one of 256, 512 and 768"),
        ({"image_seq_length": 64}, "image_seq_length is 64"),
    ],
)
def test_other_preprocessors_are_refused(changes, message):
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        from_config(Reader({**vision.PREPROCESSOR, **changes}, "preprocessor_config.json"))


def test_a_picture_takes_the_tokens_that_it_may():
    processor = from_config(Reader({}, "preprocessor_config.json"))
    assert processor.side == 768 and processor.max_tokens == 257
    with pytest.raises(RequestError, match="takes 257 tokens .* no more than 256"):
        processor.limited({"image": 256}).process(np.zeros((1, 20, 30, 3), np.uint8))
