"""Videos for Qwen3-VL and Qwen3.5 equal to transformers': frames, sizes, times and logits."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.video_processing_utils import BaseVideoProcessor
from transformers.video_utils import VideoMetadata

from pagoda.arch.read import Reader
from pagoda.base.errors import RequestError
from pagoda.config.modality import MODALITIES
from pagoda.engine.media import MediaInput, place_media
from pagoda.text.images import qwen_vl
from pagoda.text.images.film import FrameChoice, Stills
from pagoda.text.images.qwen_video import QwenVideoProcessor, from_config
from pagoda.text.images.qwen_vl import QwenImageProcessor
from pagoda.text.media.base import Medium
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model
from tests.models import tiny, vision
from tests.models.vision import VisionDriver, picture

SIZE = {"shortest_edge": 4096, "longest_edge": 65536}
SETTINGS = {**vision.PREPROCESSOR, "size": SIZE, "fps": 2, "min_frames": 4, "max_frames": 12}
del SETTINGS["image_processor_type"]
FILMS = [
    # frames, frames per second, height, width
    (30, 10.0, 64, 96), (7, 29.97, 97, 203), (5, 1.0, 310, 51), (2, 30.0, 40, 40),
    (200, 24.0, 20, 70), (90, 12.5, 240, 320),
]  # fmt: skip


@pytest.fixture
def theirs(monkeypatch) -> Qwen3VLVideoProcessor:
    resized_by_pillow(monkeypatch)
    return Qwen3VLVideoProcessor(**SETTINGS, cap_pixels_per_frame=False, do_convert_rgb=False)


def resized_by_pillow(monkeypatch) -> None:
    """Resizing with pillow, as transformers' image processors of that name do, and the two other
    functions of torchvision, which does not come with every torch."""

    def resize(self, image, size, resample, **kwargs):
        frames = image.reshape(-1, *image.shape[-3:]).permute(0, 2, 3, 1).numpy()
        shape = (size.width, size.height)
        done = [Image.fromarray(f).resize(shape, Image.Resampling.BICUBIC) for f in frames]
        stacked = torch.from_numpy(np.stack([np.asarray(f) for f in done]))
        return stacked.permute(0, 3, 1, 2).reshape(*image.shape[:-2], size.height, size.width)

    def normalize(self, image, mean, std, **kwargs):
        return (image - mean[:, None, None]) / std[:, None, None]

    monkeypatch.setattr(BaseVideoProcessor, "resize", resize)
    monkeypatch.setattr(BaseVideoProcessor, "normalize", normalize)


def film(num_frames: int, height: int, width: int) -> np.ndarray:
    """[frames, height, width, 3]: a gradient that moves."""
    first = np.asarray(picture("gradient", width, height))
    return np.stack([np.roll(first, 3 * number, axis=1) for number in range(num_frames)])


def mine(settings: dict | None = None) -> QwenVideoProcessor:
    return from_config(Reader(SETTINGS if settings is None else settings, "x"))


def processed(
    processor: QwenVideoProcessor, frames: np.ndarray, fps: float, choice: FrameChoice
) -> Medium:
    return processor.process(Stills(frames, fps, choice))


@pytest.mark.parametrize("options", [{}, {"fps": 5}, {"num_frames": 7}, {"num_frames": 2}])
@pytest.mark.parametrize(("num_frames", "fps", "height", "width"), FILMS)
def test_frames_pixels_and_times(theirs, num_frames, fps, height, width, options):
    if options.get("num_frames", 0) > num_frames:
        pytest.skip("frames would be seen twice")
    frames = film(num_frames, height, width)
    if "num_frames" in options:
        theirs.fps = None  # it takes one of the two
    about = VideoMetadata(
        total_num_frames=num_frames, fps=fps, height=height, width=width, duration=num_frames / fps
    )
    expected = theirs(
        [frames], video_metadata=[about], do_sample_frames=True, return_metadata=True,
        return_tensors="pt", **options,
    )  # fmt: skip
    found = processed(mine(), frames, fps, FrameChoice(**options))
    image = image_processor()
    patches = np.concatenate([image.patches(frame.values)[0] for frame in found.pieces])
    np.testing.assert_allclose(patches, expected["pixel_values_videos"], rtol=0, atol=1e-3)
    pairs, rows, columns = expected["video_grid_thw"][0].tolist()
    assert [frame.grid for frame in found.pieces] == [(1, rows // 2, columns // 2)] * pairs
    tokens = rows * columns // 4
    prompt = "See <|vision_start|><|video_pad|><|vision_end|> look."
    videos = MediaInput(MODALITIES["video"], mine(), _Plain())
    shown = videos.write(prompt, [found])
    filled = shown.replace("<|video_pad|>", "<|video_pad|>" * tokens)
    assert filled == text_by_transformers(theirs, expected, prompt)
    ids, placed = place_media(_Plain().encode(shown), {videos: [found]})
    assert ids == _Plain().encode(filled)
    assert [ids[place.start - 1] for place in placed] == [_Plain.START] * pairs


class _Plain:
    """A tokenizer of characters and three special tokens."""

    MARKS = ("<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    VIDEO, START = 1000, 1001

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        for number, mark in enumerate(self.MARKS):
            text = text.replace(mark, chr(self.VIDEO + number))
        return [*map(ord, text)]


def image_processor() -> QwenImageProcessor:
    return qwen_vl.from_config(Reader(vision.PREPROCESSOR, "x"))


def text_by_transformers(video_processor: Qwen3VLVideoProcessor, features, prompt: str) -> str:
    processor = Qwen3VLProcessor.__new__(Qwen3VLProcessor)
    processor.video_processor = video_processor
    processor.image_token, processor.video_token = "<|image_pad|>", "<|video_pad|>"
    processor.vision_start_token, processor.vision_end_token = "<|vision_start|>", "<|vision_end|>"
    replaced = processor.replace_video_token(features, 0)
    (text,), _ = processor.get_text_with_replacements([prompt], videos_replacements=[replaced])
    return text


def test_each_video_needs_its_place():
    video = processed(mine(), film(9, 64, 64), 3.0, FrameChoice())
    with pytest.raises(RequestError, match="2 places for 1 videos"):
        MediaInput(MODALITIES["video"], mine(), _Plain()).write(
            "<|video_pad|> and <|video_pad|>", [video]
        )


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_vl_moe", "qwen3_5"])
@pytest.mark.parametrize("chunk", [9, 500])
def test_logits_equal(chunk, family, theirs, tmp_path):
    reference = vision.make(family=family)
    vision.save(reference, tmp_path)
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(SETTINGS))
    files = open_model(tmp_path)
    frames, image = film(20, 60, 100), picture("noise", 70, 90)
    video = processed(processor_for(files, "video"), frames, 8.0, FrameChoice())
    (picture_mine,) = vision.processed(tmp_path, [image])
    pieces = [
        words(5, 1),
        video,
        words(4, 2),
        [200],
        picture_mine,
        [202],
        words(3, 3),
        video,
        [5, 6],
    ]
    prompt = vision.prompt_of(pieces, tmp_path)
    driver = VisionDriver(tiny.load(tmp_path), processor_for(files, "image"))
    driver.add("r", prompt)
    ids = prompt.ids + words(4, 4)
    found = driver.run(ids, chunk)
    about = VideoMetadata(total_num_frames=20, fps=8.0)
    features = theirs(
        [frames, frames], video_metadata=[about, about], do_sample_frames=True, return_tensors="pt"
    )
    assert features["video_grid_thw"][0, 0] == len(video.pieces) == 3
    kinds = [{vision.IMAGE: 1, vision.VIDEO: 2}.get(token, 0) for token in ids]
    reference.model.rope_deltas = None
    with torch.inference_mode():
        expected = reference(
            torch.tensor([ids]), mm_token_type_ids=torch.tensor([kinds]),
            **vision.processed_by_transformers([image]),
            pixel_values_videos=features["pixel_values_videos"],
            video_grid_thw=features["video_grid_thw"],
        ).logits[0]  # fmt: skip
    assert expected.std() > 0.3
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    # The same frames again: each pair is encoded once.
    assert driver.encoder.num_encoded == len({frame.content_hash for frame in video.pieces}) + 1


def words(count: int, seed: int) -> list[int]:
    return [token % 150 for token in tiny.random_ids(count, seed=seed)]


def test_budgets():
    published = mine({})
    assert (published.max_pixels, published.min_pixels, published.fps) == (25165824, 4096, 2.0)
    small = published.limited({"video": 256, "image": 64})
    video = processed(small, film(64, 200, 300), 1.0, FrameChoice())
    assert len(video.pieces) == 256 // 16
    assert sum(frame.num_tokens for frame in video.pieces) <= 256
    short = processed(small, film(3, 900, 900), 1.0, FrameChoice(num_frames=1))
    assert [frame.num_tokens for frame in short.pieces] == [64]
    assert short.pieces[0].values.shape == (2, 256, 256, 3)
    with pytest.raises(RequestError, match="too long and narrow"):
        processed(small, film(3, 32, 8000), 1.0, FrameChoice())


def test_what_a_request_may_choose():
    choose = mine({}).choose
    assert len(choose(1000, 10.0, FrameChoice())) == 200
    assert len(choose(1000, 10.0, FrameChoice(fps=0.5))) == 50
    assert len(choose(1000, 10.0, FrameChoice(fps=0.5, num_frames=20))) == 20
    assert len(choose(1000, 10.0, FrameChoice(fps=0.5, num_frames=90))) == 50
    assert choose(1000, 10.0, FrameChoice(num_frames=3)) == [0, 500, 999]
    assert choose(1, 10.0, FrameChoice(num_frames=3)) == [0]


def test_a_gguf_says_nothing_of_videos(tmp_path):
    clip = {"clip.projector_type": "qwen3vl_merger", "clip.vision.patch_size": 14}
    files = SimpleNamespace(metadata=clip, config=None)
    assert processor_for(files, "video") == mine({"patch_size": 14})
