"""Models that click as they are told to: well, beside, in another space, or not at all."""

import json

import pytest

from pagoda.cli.main import main
from pagoda_agent.dialects.space import Space
from pagoda_agent.models.calibrate import SIZES, calibrate, screens
from pagoda_agent.models.dialogue import Reply
from pagoda_agent.models.profiles import profile_for
from tests.agent.model_server import ModelServer

SCREEN = (1280, 720)


class Clicker:
    """Knows the targets, and clicks `off` pixels beside them, counting as `scale` says."""

    def __init__(self, scale=(1000, 1000), off=0.0, seed=0):
        self.targets = [target for _, target in screens(40, SCREEN, seed)]
        self.scale, self.off = scale, off
        self.tasks = []

    async def complete(self, messages, tools=()):
        target = self.targets[len(self.tasks)]
        self.tasks.append(messages[-1].text)
        x = (target.center[0] + self.off) / SCREEN[0] * self.scale[0]
        y = target.center[1] / SCREEN[1] * self.scale[1]
        call = {"action": "left_click", "coordinate": [round(x), round(y)]}
        call = json.dumps({"name": "computer_use", "arguments": call})
        return Reply(f"<tool_call>\n{call}\n</tool_call>")

    async def close(self):
        pass


QWEN = profile_for("qwen3-vl-8b")


async def test_a_model_that_clicks_well():
    model = Clicker()
    found = await calibrate(model, QWEN, screen=SCREEN)
    assert found.hit_rate == 1.0 and found.median_error() < 1
    assert found.hits_by_size() == dict.fromkeys(SIZES, (5, 5))
    assert found.better_space(QWEN.space) is None
    assert all(
        target.name in task for target, task in zip(model.targets, model.tasks, strict=False)
    )


async def test_a_model_that_misses_small_targets():
    found = await calibrate(Clicker(off=14.0), QWEN, screen=SCREEN)
    assert found.hits_by_size() == {16: (0, 5), 24: (0, 5), 32: (5, 5), 48: (5, 5)}
    assert found.median_error() == pytest.approx(14.0, abs=1.0)
    assert found.better_space(QWEN.space) is None


@pytest.mark.parametrize(
    ("scale", "space", "sent"),
    [
        ((1280, 720), Space.PIXELS, (1280, 720)),
        # With a profile that knows of the model's own resizing the picture has that size at once.
        ((1288, 728), Space.RESIZED, (1176, 672)),
    ],
)
async def test_a_model_that_counts_otherwise_is_recognised(scale, space, sent):
    found = await calibrate(Clicker(scale), QWEN, screen=SCREEN)
    assert found.hit_rate < 0.5
    assert found.better_space(QWEN.space) in (space, Space.PIXELS, Space.RESIZED)
    fits = profile_for("x", "qwen3-vl", space=space)
    assert (await calibrate(Clicker(sent), fits, screen=SCREEN)).hit_rate == 1.0


async def test_a_model_that_never_clicks():
    class Talker(Clicker):
        async def complete(self, messages, tools=()):
            return Reply("I would click it.")

    found = await calibrate(Talker(), QWEN, trials=4, screen=SCREEN)
    assert found.hit_rate == 0 and found.median_error() is None
    assert all(trial.problem for trial in found.trials)
    assert found.better_space(QWEN.space) is None


def test_screens_are_the_same_for_a_seed_and_targets_are_where_they_say():
    first, again = list(screens(8, SCREEN, 3)), list(screens(8, SCREEN, 3))
    other = list(screens(8, SCREEN, 4))
    assert [target for _, target in first] == [target for _, target in again]
    assert [target for _, target in first] != [target for _, target in other]
    for frame, target in first:
        x, y = map(round, target.center)
        inside, outside = frame.image.getpixel((x, y)), frame.image.getpixel((x, y - target.size))
        assert inside != outside == (245, 245, 245)


@pytest.mark.parametrize(
    ("reply", "advice"),
    [
        ("I would click it.", "No reply was understood as a click: try another --profile"),
        ("mouse 999 999 1", "It hits nothing: try another --profile"),
    ],
)
def test_a_model_that_hits_nothing_fails_with_advice(reply, advice, capsys):
    with ModelServer([reply] * 4) as server:
        words = ["calibrate", "--trials", "4", "--url", f"{server.url}/v1", "--model", "m"]
        assert main(["agent", *words, "--profile", "nanokvm"]) == 1
    assert advice in capsys.readouterr().out


@pytest.mark.parametrize("screen", ["100000x100000", "1280x200", "1280", "axb", "1280x"])
def test_a_screen_that_has_no_room_or_takes_all_memory_is_refused(screen, capsys):
    words = ["calibrate", "--screen", screen, "--base-url", "http://127.0.0.1:9", "--model", "m"]
    assert main(["agent", *words]) == 1
    assert f"--screen {screen} must be WIDTHxHEIGHT" in capsys.readouterr().err


def test_the_smallest_screen_has_room():
    assert len(list(screens(40, (360, 360)))) == 40
