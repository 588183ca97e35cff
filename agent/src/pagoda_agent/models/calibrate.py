"""How well a model clicks: drawn screens with known targets, and how far its clicks miss them.

A model with the wrong profile counts positions otherwise and misses everything in a regular way;
a file quantized too far misses small targets only. Both are told apart here.
"""

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from PIL import Image, ImageDraw

from pagoda_agent.base.errors import ActionError
from pagoda_agent.dialects.space import Space
from pagoda_agent.drivers.base import Capabilities
from pagoda_agent.input.actions import Click, Point
from pagoda_agent.models.dialogue import ChatModel, Message, Picture, Reply
from pagoda_agent.models.profiles import Profile, dialect_of
from pagoda_agent.screen.frame import Frame
from pagoda_agent.task.history import system_text

_COLORS = {
    "red": (214, 40, 40), "green": (34, 139, 60), "blue": (37, 99, 235),
    "orange": (240, 130, 20), "purple": (130, 60, 190), "black": (20, 20, 20),
}  # fmt: skip
_SHAPES = ("square", "circle", "triangle")
SIZES = (16, 24, 32, 48)
"""Pixels of targets, from a toolbar's icon to a large button."""
_TARGETS = 10
_MARGIN = 8


@dataclass(frozen=True)
class Target:
    name: str
    center: tuple[float, float]
    """In pixels, from the top left."""
    size: int


@dataclass(frozen=True)
class Trial:
    target: Target
    error: float | None
    """Pixels between click and centre; None where no click came."""
    problem: str = ""

    @property
    def hit(self) -> bool:
        return self.error is not None and self.error <= self.target.size / 2


@dataclass
class Calibration:
    profile: str
    screen: tuple[int, int]
    trials: list[Trial] = field(default_factory=list)
    errors_by_space: dict[Space, list[float]] = field(default_factory=dict)
    """Errors of the same replies, read as if they counted in each space."""

    @property
    def hit_rate(self) -> float:
        return sum(trial.hit for trial in self.trials) / max(1, len(self.trials))

    def median_error(self) -> float | None:
        errors = [trial.error for trial in self.trials if trial.error is not None]
        return statistics.median(errors) if errors else None

    def hits_by_size(self) -> dict[int, tuple[int, int]]:
        """(hits, trials) for each size of targets."""
        found = dict.fromkeys(SIZES, (0, 0))
        for trial in self.trials:
            hits, count = found[trial.target.size]
            found[trial.target.size] = (hits + trial.hit, count + 1)
        return found

    def better_space(self, space: Space) -> Space | None:
        """A space in which the same clicks miss by less than half; None where there is none."""
        medians = {
            other: statistics.median(errors)
            for other, errors in self.errors_by_space.items()
            if len(errors) == len(self.trials)
        }
        if not medians:
            return None
        best = min(medians, key=lambda other: medians[other])
        own = medians.get(space)
        return best if own is None or medians[best] < own / 2 else None


def screens(count: int, size: tuple[int, int], seed: int = 0) -> Iterator[tuple[Frame, Target]]:
    """Screens with a target to click on each; the same for the same seed."""
    rng = random.Random(seed)
    for number in range(count):
        image, targets = _draw(rng, size)
        wanted = SIZES[number % len(SIZES)]
        yield Frame(image, number), next(t for t in targets if t.size == wanted)


async def calibrate(
    model: ChatModel,
    profile: Profile,
    *,
    trials: int = 20,
    screen: tuple[int, int] = (1280, 720),
    seed: int = 0,
    report: Callable[[Trial], None] = lambda trial: None,
) -> Calibration:
    """Ask the model for `trials` clicks. Raises ModelError where it cannot be asked."""
    result = Calibration(profile.name, screen)
    spaces = [space for space in Space if _takes_space(profile)]
    result.errors_by_space = {space: [] for space in spaces}
    capabilities = Capabilities()
    dialect = dialect_of(profile)
    for frame, target in screens(trials, screen, seed):
        size = profile.picture_size(frame)
        data = frame.encoded(profile.picture_format, size)
        picture = Picture(data, f"image/{profile.picture_format.lower()}", size)
        task = f"Your task: click on the {target.name}, with the left button, once. Do it now."
        reply = await model.complete(
            [
                Message("system", system_text(dialect, size, capabilities)),
                Message("user", task, (picture,)),
            ],
            dialect.tools(size, capabilities),
        )
        trial = _judge(profile, reply, size, target, screen)
        result.trials.append(trial)
        report(trial)
        for space in spaces:
            other = _judge(replace(profile, space=space), reply, size, target, screen)
            if other.error is not None:
                result.errors_by_space[space].append(other.error)
    return result


def _takes_space(profile: Profile) -> bool:
    return profile.dialect in ("qwen", "nanokvm", "uitars")


def _judge(
    profile: Profile, reply: Reply, size: tuple[int, int], target: Target, screen: tuple[int, int]
) -> Trial:
    try:
        actions = dialect_of(profile).parse(reply, size).actions
    except ActionError as error:
        return Trial(target, None, str(error))
    clicks = [action.at for action in actions if isinstance(action, Click) and action.at]
    if not clicks:
        return Trial(target, None, "The reply has no click.")
    return Trial(target, _distance(clicks[0], target, screen))


def _distance(at: Point, target: Target, screen: tuple[int, int]) -> float:
    x, y = at.x * screen[0] - target.center[0], at.y * screen[1] - target.center[1]
    return float((x * x + y * y) ** 0.5)


def _draw(rng: random.Random, size: tuple[int, int]) -> tuple[Image.Image, Sequence[Target]]:
    """A window on a desktop with shapes of different colours, none above another."""
    width, height = size
    image = Image.new("RGB", size, (60, 90, 120))
    draw = ImageDraw.Draw(image)
    draw.rectangle((width * 0.05, height * 0.06, width * 0.95, height * 0.94), (245, 245, 245))
    draw.rectangle((width * 0.05, height * 0.06, width * 0.95, height * 0.1), (210, 214, 220))
    kinds = [(color, shape) for color in _COLORS for shape in _SHAPES]
    taken: list[tuple[float, float, float]] = []
    targets = []
    for index, (color, shape) in enumerate(rng.sample(kinds, _TARGETS)):
        pixels = SIZES[index % len(SIZES)]
        while True:
            x = rng.uniform(width * 0.08, width * 0.92)
            y = rng.uniform(height * 0.14, height * 0.9)
            room = pixels / 2 + _MARGIN
            if all(max(abs(x - a), abs(y - b)) > room + c for a, b, c in taken):
                break
        taken.append((x, y, room))
        _shape(draw, shape, x, y, pixels / 2, _COLORS[color])
        targets.append(Target(f"{color} {shape}", (x, y), pixels))
    return image, targets


def _shape(
    draw: ImageDraw.ImageDraw, shape: str, x: float, y: float, half: float,
    color: tuple[int, int, int],
) -> None:  # fmt: skip
    box = (x - half, y - half, x + half, y + half)
    if shape == "square":
        draw.rectangle(box, color)
    elif shape == "circle":
        draw.ellipse(box, color)
    else:
        draw.polygon([(x, y - half), (x - half, y + half), (x + half, y + half)], color)
