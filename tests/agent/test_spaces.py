"""What a position means in each space, at edges and on odd sizes."""

import ast
import importlib.util
import math
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from pagoda.arch.read import Reader
from pagoda.config.modality import MODALITIES
from pagoda.text.images.qwen_vl import fitting_size, qwen2_from_config
from pagoda_agent.base.errors import ActionError
from pagoda_agent.dialects.space import Space, notches, resized
from pagoda_agent.input.actions import Point
from pagoda_agent.models.profiles import PROFILES
from pagoda_agent.screen.frame import Frame

SIZES = st.tuples(st.integers(1, 4000), st.integers(1, 4000))


@pytest.mark.parametrize(
    ("space", "value", "share"),
    [
        (Space.THOUSAND, 0, 0.0),
        (Space.THOUSAND, 499, 0.499),
        (Space.THOUSAND, 999, 0.999),
        (Space.THOUSAND, 1000, 1.0),
        (Space.NINES, 0, 0.0),
        (Space.NINES, 499, 499 / 999),
        (Space.NINES, 999, 1.0),
        (Space.NINES, 1000, 1.0),
        (Space.UNIT, 0, 0.0),
        (Space.UNIT, 0.5, 0.5),
        (Space.UNIT, 1, 1.0),
    ],
)
def test_relative_spaces(space, value, share):
    assert space.point(value, value, (1280, 720)) == Point(share, share)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (Space.THOUSAND, 1001),
        (Space.THOUSAND, -1),
        (Space.NINES, 1000.5),
        (Space.UNIT, 1.001),
        (Space.UNIT, 500),
        (Space.PIXELS, 720),
        (Space.PIXELS, -0.5),
    ],
)
def test_off_the_screen(space, value):
    with pytest.raises(ActionError, match=rf"y is {value:g}, .* must be from 0 to"):
        space.point(0, value, (1280, 720))


@given(SIZES, st.data())
def test_a_pixel_comes_back_however_a_driver_rounds(size, data):
    width, height = size
    x = data.draw(st.integers(0, width - 1))
    y = data.draw(st.integers(0, height - 1))
    share = Space.PIXELS.point(x, y, size)
    assert (int(share.x * width), int(share.y * height)) == (x, y)
    if width > 1:
        assert abs(share.x * (width - 1) - x) <= 0.5


def smart_resize():
    """The model family's own function, out of its file: importing it would load torch."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        pytest.skip("transformers is missing")
    file = Path(spec.origin).parent / "models/qwen2_vl/image_processing_qwen2_vl.py"
    tree = ast.parse(file.read_text())
    (found,) = (node for node in tree.body if getattr(node, "name", "") == "smart_resize")
    scope = {"math": math}
    exec(compile(ast.Module([found], []), str(file), "exec"), scope)
    return scope["smart_resize"]


def test_resized_as_the_model_family_does():
    reference = smart_resize()

    @given(SIZES.filter(lambda size: max(size) / min(size) <= 200))
    @example((1280, 720))
    @example((1, 1))
    @example((4000, 4000))
    def run(size):
        height, width = reference(size[1], size[0], 28, 56 * 56, 16384 * 28 * 28)
        assert resized(size) == (width, height)

    run()


SCREENS = SIZES.filter(lambda size: max(size) / min(size) <= 100)


@given(SCREENS, st.sampled_from(["qwen2.5-vl", "ui-tars-1.5"]))
@example((1280, 720), "ui-tars-1.5")
@example((1920, 1080), "qwen2.5-vl")
@example((3840, 2160), "qwen2.5-vl")
@example((1080, 1920), "qwen2.5-vl")
def test_a_server_leaves_the_pictures_that_are_sent_as_they_are(screen, name):
    """Pagoda with the fewest tokens that it has by default, and with all that the model takes."""
    profile = PROFILES[name]
    frame = Frame(Image.new("1", screen), 0)
    width, height = profile.picture_size(frame)
    published = {"min_pixels": 3136, "max_pixels": 12845056}
    whole = qwen2_from_config(Reader(published, "x"))
    for processor in (whole, whole.limited({"image": MODALITIES["image"].max_tokens["cpu"]})):
        bounds = (processor.min_pixels, processor.max_pixels)
        assert fitting_size(height, width, 28, *bounds) == (height, width)
    # And so the dialect counts the pixels of what was sent.
    assert profile.space.most((width, height)) == (width - 1, height - 1)


def test_resized_pixels_count_the_models_own_picture():
    # 1280x720 becomes 1288x728; its last pixel is the screen's last.
    point = Space.RESIZED.point(1287, 727, (1280, 720))
    assert (int(point.x * 1280), int(point.y * 720)) == (1279, 719)
    with pytest.raises(ActionError, match="from 0 to 1287"):
        Space.RESIZED.point(1288, 0, (1280, 720))


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [(0, 0), (1, 1), (-1, -1), (100, 1), (149, 1), (150, 2), (-250, -3), (1000, 10)],
)
def test_notches_of_pixels(pixels, expected):
    assert notches(pixels, 100) == expected
