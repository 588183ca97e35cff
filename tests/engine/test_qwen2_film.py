"""A film for a tiny Qwen2.5-VL through the whole engine: chunks, cached prefixes, and its pace."""

from pathlib import Path

import pytest
import torch

from pagoda.core.messages import AddRequest
from pagoda.text.images.film import FrameChoice, Stills
from pagoda.text.media.base import Medium
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model
from tests.engine.running import run, tokens
from tests.engine.test_vision import COUNT, encoder, request, start, words
from tests.models import vision
from tests.models.test_qwen_video import film
from tests.models.vision import VisionPrompt

FAST, SLOW = 4.0, 4 / 3
"""Frames a second: a step of two is one position, and three."""


@pytest.fixture(scope="module")
def reference():
    return vision.make(family="qwen2_5_vl")


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("qwen2_5_vl")
    vision.save(reference, folder)
    return folder


def seen(folder: Path, fps: float) -> Medium:
    """All 8 frames, 2 x 14 tokens for each two."""
    processor = processor_for(open_model(folder), "video")
    return processor.process(Stills(film(8, 60, 400), fps, FrameChoice(fps=fps)))


def prompt(folder: Path, fps: float) -> VisionPrompt:
    return vision.prompt_of([words(9, 1), seen(folder, fps), words(12, 2)], folder)


@torch.inference_mode()
def expected(reference, folder: Path, given: VisionPrompt, fps: float) -> list[int]:
    """By transformers, which has the same positions while a film has fewer moments than columns."""
    image = processor_for(open_model(folder), "image")
    patches = [image.patches(piece.values)[0] for piece in seen(folder, fps).pieces]
    ids = list(given.ids)
    for _ in range(COUNT):
        kinds = torch.tensor([[2 * (token == vision.VIDEO) for token in ids]])
        reference.model.rope_deltas = None
        logits = reference(
            torch.tensor([ids]), mm_token_type_ids=kinds,
            pixel_values_videos=torch.cat(list(map(torch.from_numpy, patches))),
            video_grid_thw=torch.tensor([[4, 4, 28]]), second_per_grid_ts=torch.tensor([2 / fps]),
        ).logits[0, -1]  # fmt: skip
        ids.append(int(logits.argmax()))
    return ids[len(given.ids) :]


def test_the_same_frames_at_another_pace_are_another_prompt(folder, reference):
    core, _ = start(folder, 13)
    fast, slow = prompt(folder, FAST), prompt(folder, SLOW)
    assert fast.ids == slow.ids
    hashes = [[item.content_hash for item in given.items] for given in (fast, slow)]
    assert hashes[0] == hashes[1] and len(hashes[0]) == 4
    for number, (given, fps) in enumerate([(fast, FAST), (fast, FAST), (slow, SLOW)]):
        (deltas,) = run(core, request(str(number), given)).values()
        assert tokens(deltas) == expected(reference, folder, given, fps)
        # 9 words, the mark and the first 28 tokens stand where they stood; then time differs.
        assert deltas[0].num_cached_tokens == (0, 128, 32)[number]
    assert encoder(core).num_encoded == 4


def test_a_film_that_lasts_too_long_is_refused(folder):
    core, _ = start(folder)
    given: AddRequest = request("r", prompt(folder, 1 / 40))
    (deltas,) = run(core, given).values()
    assert deltas[-1].bad_request and "lasts too long for the 112 tokens" in deltas[-1].error
