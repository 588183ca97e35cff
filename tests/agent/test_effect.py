"""What changed on the screen, from pictures drawn here."""

import io

import pytest
from PIL import Image, ImageDraw

from pagoda_agent.input.actions import Click, Key, Point, Scroll, Type
from pagoda_agent.screen.effect import alike, changed_at, compare
from pagoda_agent.screen.frame import Frame
from pagoda_agent.task.stuck import NUDGE_AT, STOP_AT, StuckDetector, Verdict

SIZE = (1280, 720)


def screen(*boxes, number=0, size=SIZE, received_at=0.0, stale=False):
    """A grey desktop with dark boxes (left, top, right, bottom)."""
    image = Image.new("RGB", size, (190, 190, 190))
    for box in boxes:
        ImageDraw.Draw(image).rectangle(box, (40, 60, 90))
    return Frame(image, number, received_at, stale)


def as_jpeg(frame, quality=60):
    data = frame.encoded("JPEG", quality=quality)
    return Frame(Image.open(io.BytesIO(data)).convert("RGB"), frame.number, frame.received_at)


DIALOG = (400, 200, 800, 500)
CLOCK = (1200, 4, 1224, 16)


def test_a_change_is_said_with_its_place():
    effect = compare(screen(), screen(DIALOG), (Point(0.5, 0.5),))
    assert effect.kind == "changed" and effect.happened
    assert effect.share == pytest.approx(400 * 300 / (1280 * 720), rel=0.05)
    assert effect.box == pytest.approx((400 / 1280, 200 / 720, 800 / 1280, 500 / 720), abs=0.01)
    assert "x 31-63%" in effect.describe()


def test_nothing_changed_even_if_compressed_anew():
    before = screen(DIALOG)
    assert compare(before, screen(DIALOG)).kind == "none"
    assert compare(as_jpeg(before, 60), as_jpeg(before, 85)).kind == "none"


def test_a_clock_is_no_effect_of_a_click_elsewhere():
    effect = compare(screen(), screen(CLOCK), (Point(0.2, 0.5),))
    assert effect.kind == "small" and not effect.happened
    assert "away from the action" in effect.describe()
    near = compare(screen(), screen(CLOCK), (Point(1210 / 1280, 10 / 720),))
    assert near.happened, "the same spot, where the action was"
    assert compare(screen(), screen(CLOCK)).happened, "keys may change anything anywhere"


def test_another_size_is_its_own_kind():
    assert compare(screen(), screen(size=(1024, 768))).kind == "resized"
    assert not alike(screen(), screen(size=(1024, 768)))


def test_no_newer_picture_is_not_no_change():
    old = screen(received_at=5.0)
    assert compare(old, screen(received_at=5.0, stale=True)).kind == "unknown"
    assert compare(old, screen(received_at=6.0, stale=True)).kind == "none"


def test_only_the_surroundings_of_a_target_count():
    before, after = screen(), screen(DIALOG)
    assert changed_at(before, after, Point(0.5, 0.5))
    assert not changed_at(before, after, Point(0.1, 0.9))
    assert not changed_at(before, after, Point(1.0, 1.0))


def test_black_is_recognised_and_dark_mode_is_not_black():
    black = Image.new("RGB", SIZE, (2, 2, 2))
    assert Frame(black, 0).is_black()
    ImageDraw.Draw(black).rectangle((0, 0, 1280, 40), (60, 60, 60))
    assert not Frame(black, 0).is_black()


class Steps:
    """Steps one after the other; the screen is what each leaves behind."""

    def __init__(self):
        self.detector = StuckDetector()
        self.now = screen()

    def __call__(self, action, after=None):
        after = after or self.now
        points = (action.at,) if isinstance(action, Click) else ()
        effect = compare(self.now, after, points)
        self.now = after
        return self.detector.add([action], effect, after)


def click(x, y=0.5):
    return Click(Point(x, y))


def test_the_same_click_without_effect():
    step = Steps()
    verdicts = [step(click(0.3 + 0.0005 * n)) for n in range(STOP_AT)]
    assert verdicts[: NUDGE_AT - 1] == [Verdict.GOES_ON] * (NUDGE_AT - 1)
    assert verdicts[NUDGE_AT - 1 : -1] == [Verdict.NUDGE] * (STOP_AT - NUDGE_AT)
    assert verdicts[-1] is Verdict.STOP


def test_a_ticking_clock_does_not_make_it_look_useful():
    step = Steps()
    clocks = [(1200, 4, 1208 + 8 * (n % 2), 16) for n in range(STOP_AT)]
    assert [step(click(0.3), screen(clock)) for clock in clocks][-1] is Verdict.STOP


def test_the_same_action_with_effects_is_work():
    step = Steps()
    for n in range(20):
        after = screen((0, 30 * n, 1280, 30 * n + 29))
        assert step(Scroll(Point(0.5, 0.5), dy=-3), after) is Verdict.GOES_ON


def test_different_actions_without_effect_are_no_loop():
    step = Steps()
    assert {step(Type(f"text {n}")) for n in range(12)} == {Verdict.GOES_ON}
    assert {step(click(n / 12)) for n in range(12)} == {Verdict.GOES_ON}


@pytest.mark.parametrize("length", [2, 3, 4])
def test_going_in_circles(length):
    step = Steps()
    screens = [screen((100 * n, 100, 100 * n + 90, 400)) for n in range(length)]
    verdicts = [
        step(click(0.1 + 0.1 * (n % length)), screens[n % length]) for n in range(STOP_AT * length)
    ]
    assert verdicts[NUDGE_AT * length - 2] is Verdict.GOES_ON
    assert verdicts[NUDGE_AT * length - 1] is Verdict.NUDGE
    assert verdicts[-1] is Verdict.STOP and Verdict.STOP not in verdicts[:-1]


def test_a_cycle_that_gets_somewhere_is_work():
    """Tab, type, Tab, type: the same keys fill one field after the other."""
    step = Steps()
    for n in range(24):
        after = screen((0, 20 * n, 600, 20 * n + 15))
        action = Key(("Tab",)) if n % 2 else Key(("Space",))
        assert step(action, after) is Verdict.GOES_ON


def test_a_hint_starts_anew():
    step = Steps()
    for _ in range(STOP_AT - 1):
        step(click(0.3))
    step.detector.reset()
    assert step(click(0.3)) is Verdict.GOES_ON
