"""Films for Qwen2-VL and Qwen2.5-VL equal to transformers': frames, sizes, positions and logits."""

import json
import sys
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from transformers.video_utils import VideoMetadata

from pagoda.arch.read import Reader
from pagoda.base.errors import RequestError
from pagoda.config.modality import MODALITIES
from pagoda.core.messages import MediaItem
from pagoda.engine.media import MediaInput, place_media
from pagoda.runtime.media import RequestMedia, check_media
from pagoda.text.images.film import FrameChoice, Stills
from pagoda.text.images.qwen2_video import from_config
from pagoda.text.images.qwen_vl import qwen2_from_config
from pagoda.text.media.base import Medium
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model
from tests.models import tiny, vision
from tests.models.test_qwen_video import _Plain, film, resized_by_pillow, words
from tests.models.vision import QWEN2_PREPROCESSOR, VisionDriver, picture

# It names torchvision in its signatures alone, and that does not come with every torch.
_TORCHVISION = "torchvision.transforms.v2.functional"
_PARENTS = [_TORCHVISION.rsplit(".", count)[0] for count in range(4)]
with patch.dict(sys.modules, {name: ModuleType(name) for name in _PARENTS}):
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

SETTINGS = {**QWEN2_PREPROCESSOR, "fps": 2, "min_frames": 4, "max_frames": 12}
del SETTINGS["image_processor_type"]
FILMS = [
    # frames, frames per second, height, width
    (30, 10.0, 64, 96), (7, 29.97, 97, 203), (5, 1.0, 310, 51), (2, 30.0, 40, 40),
    (200, 24.0, 20, 70), (90, 12.5, 240, 320),
]  # fmt: skip


@pytest.fixture
def theirs(monkeypatch) -> Qwen2VLVideoProcessor:
    resized_by_pillow(monkeypatch)
    return Qwen2VLVideoProcessor(**SETTINGS, cap_pixels_per_frame=False, do_convert_rgb=False)


def features_of(processor: Qwen2VLVideoProcessor, frames: np.ndarray, rate: float, **options):
    """Patches and grid, and the seconds of a step of frames as Qwen2_5_VLProcessor has them."""
    height, width = frames.shape[1:3]
    about = VideoMetadata(
        total_num_frames=len(frames), fps=rate, height=height, width=width,
        duration=len(frames) / rate,
    )  # fmt: skip
    found = processor(
        [frames], video_metadata=[about], do_sample_frames=True, return_metadata=True,
        return_tensors="pt", **options,
    )  # fmt: skip
    (metadata,) = found["video_metadata"]
    return found, processor.temporal_patch_size / metadata.sampled_fps


def processed(frames: np.ndarray, fps: float, choice: FrameChoice, **settings) -> Medium:
    processor = from_config(Reader({**SETTINGS, **settings}, "x"))
    return processor.process(Stills(frames, fps, choice))


@pytest.mark.parametrize("options", [{}, {"fps": 5}, {"num_frames": 7}, {"num_frames": 2}])
@pytest.mark.parametrize(("num_frames", "fps", "height", "width"), FILMS)
def test_frames_pixels_and_seconds(theirs, num_frames, fps, height, width, options):
    if round(options.get("num_frames", 0) / 2) * 2 > num_frames:
        pytest.skip("frames would be seen twice")
    frames = film(num_frames, height, width)
    if "num_frames" in options:
        theirs.fps = None  # it takes one of the two
    expected, seconds = features_of(theirs, frames, fps, **options)
    found = processed(frames, fps, FrameChoice(**options))
    image = qwen2_from_config(Reader(QWEN2_PREPROCESSOR, "x"))
    patches = np.concatenate([image.patches(piece.values)[0] for piece in found.pieces])
    np.testing.assert_allclose(patches, expected["pixel_values_videos"], rtol=0, atol=1e-3)
    steps, rows, columns = expected["video_grid_thw"][0].tolist()
    assert [piece.grid for piece in found.pieces] == [(1, rows // 2, columns // 2)] * steps
    assert found.pieces[0].seconds_on is None
    assert [piece.seconds_on for piece in found.pieces[1:]] == pytest.approx(
        [seconds] * (steps - 1)
    )


def test_the_prompt_has_one_run_of_tokens():
    found = processed(film(30, 64, 96), 10.0, FrameChoice())
    videos = MediaInput(MODALITIES["video"], from_config(Reader(SETTINGS, "x")), _Plain())
    shown = videos.write("See <|vision_start|><|video_pad|><|vision_end|> look.", [found])
    ids, placed = place_media(_Plain().encode(shown), {videos: [found]})
    tokens = sum(piece.num_tokens for piece in found.pieces)
    whole = f"See <|vision_start|>{'<|video_pad|>' * tokens}<|vision_end|> look."
    assert ids == _Plain().encode(whole)
    starts = [place.start for place in placed]
    assert starts == list(range(starts[0], starts[0] + tokens, found.pieces[0].num_tokens))


def test_budgets():
    published = from_config(Reader({}, "x"))
    assert (published.min_pixels, published.max_pixels) == (100352, 602112)
    small = published.limited({"video": 256, "image": 64})
    video = small.process(Stills(film(64, 200, 300), 1.0, FrameChoice()))
    assert len(video.pieces) == 256 // 16
    assert 128 < sum(piece.num_tokens for piece in video.pieces) <= 256
    few = small.process(Stills(film(3, 900, 900), 1.0, FrameChoice(num_frames=1)))
    assert [piece.num_tokens for piece in few.pieces] == [64]
    with pytest.raises(RequestError, match="too long and narrow"):
        small.process(Stills(film(3, 28, 8000), 1.0, FrameChoice()))


def test_a_gguf_says_nothing_of_videos():
    clip = {"clip.projector_type": "qwen2.5vl_merger", "clip.vision.patch_size": 14}
    files = SimpleNamespace(metadata=clip, config=None)
    found = processor_for(files, "video")
    assert (found.unit, found.min_pixels, found.max_pixels) == (28, 3136, 12845056)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
@pytest.mark.parametrize(("chunk", "fps"), [(9, 8.0), (500, 3.0), (500, 0.8)])
def test_logits_equal(chunk, fps, family, theirs, tmp_path):
    """Steps of 1, 2.7 and 10 positions with Qwen2.5-VL."""
    reference = vision.make(family=family)
    vision.save(reference, tmp_path)
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(SETTINGS))
    files = open_model(tmp_path)
    frames, image = film(20, 60, 100), picture("noise", 70, 90)
    video = processor_for(files, "video").process(Stills(frames, fps, FrameChoice()))
    (picture_mine,) = vision.processed(tmp_path, [image])
    pieces = [
        words(5, 1), video, words(4, 2), [200], picture_mine, [202], words(3, 3), video, [5, 6],
    ]  # fmt: skip
    prompt = vision.prompt_of(pieces, tmp_path)
    driver = VisionDriver(tiny.load(tmp_path), processor_for(files, "image"))
    driver.add("r", prompt)
    ids = prompt.ids + words(4, 4)
    found = driver.run(ids, chunk)
    features, seconds = features_of(theirs, frames, fps)
    assert features["video_grid_thw"][0, 0] == len(video.pieces) > 1
    grids = features["video_grid_thw"].repeat(2, 1)
    kinds = torch.tensor([[{vision.IMAGE: 1, vision.VIDEO: 2}.get(token, 0) for token in ids]])
    pixels = vision.processed_by_transformers([image], QWEN2_PREPROCESSOR)
    timed = {"second_per_grid_ts": torch.tensor([seconds] * 2)} if family == "qwen2_5_vl" else {}
    positions, _ = reference.model.get_rope_index(
        torch.tensor([ids]), kinds, pixels["image_grid_thw"], grids, **timed
    )
    with torch.inference_mode():
        expected = reference(
            torch.tensor([ids]), position_ids=behind_the_largest(positions, kinds), **pixels,
            pixel_values_videos=features["pixel_values_videos"].repeat(2, 1), video_grid_thw=grids,
        ).logits[0]  # fmt: skip
    assert expected.std() > 0.3
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def behind_the_largest(positions: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
    """transformers' [3, 1, tokens], with what follows a film behind its last moment, as the models
    were trained (arXiv 2409.12191, section 2.1; transformers 4 and vLLM). transformers 5 counts on
    from a film's rows and columns alone, while what it generates follows the last moment."""
    moved, following, start = positions.clone(), 0, 0
    runs = torch.unique_consecutive(kinds[0], return_counts=True)[1].tolist()
    for run in runs:
        part = positions[..., start : start + run]
        moved[..., start : start + run] = part - part.min() + following
        following = int(moved[..., start : start + run].max()) + 1
        start += run
    return moved


def test_what_follows_a_short_film_is_where_transformers_has_it():
    """One that has fewer moments than columns."""
    items = [
        MediaItem(str(step), 4 + 15 * step, 15, "", (1, 3, 5), seconds_on=0.5 if step else None)
        for step in range(4)
    ]
    reference = vision.make(family="qwen2_5_vl")
    ids = [1] * 4 + [vision.VIDEO] * 60 + [1] * 6
    kinds = torch.tensor([[2 * (token == vision.VIDEO) for token in ids]])
    expected, deltas = reference.model.get_rope_index(
        torch.tensor([ids]), kinds, None, torch.tensor([[4, 6, 10]]), torch.tensor([0.5])
    )
    media = RequestMedia(items, len(ids), 2.0)
    assert media.positions(0, len(ids)).tolist() == expected[:, 0].tolist()
    assert media.positions(len(ids), len(ids) + 1)[0, 0] == len(ids) + deltas[0, 0]


def test_films_longer_than_their_tokens_are_refused():
    items = [
        MediaItem(str(step), 4 * step, 4, "", (1, 2, 2), seconds_on=60.0 if step else None)
        for step in range(5)
    ]
    assert RequestMedia(items, 30).positions(0, 30)[0].max() < 30
    with pytest.raises(RequestError, match="lasts too long for the 20 tokens .* look at more"):
        RequestMedia(items, 30, 2.0)


def test_a_piece_that_goes_on_with_nothing_is_refused():
    item = MediaItem("x", 3, 4, "", (1, 2, 2), seconds_on=1.0)
    with pytest.raises(RequestError, match="does not fit"):
        check_media([item], 30)
