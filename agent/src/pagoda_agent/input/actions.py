"""What a model may ask for, in one form whatever dialect it was written in.

Positions are shares of the frame on which the model saw them: (0, 0) is its upper left corner and
(1, 1) its lower right one. Only drivers know pixels. Constructors check nothing; `check` does, so
that every parser's output passes through one gate.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from pagoda_agent.base.errors import ActionError
from pagoda_agent.input.keys import KEYS

Button = Literal["left", "right", "middle", "back", "forward"]
BUTTONS: tuple[Button, ...] = ("left", "right", "middle", "back", "forward")

MAX_TYPED = 20_000
"""Characters of one Type: ten minutes at the 30 ms that a KVM takes for each."""
MAX_CHORD = 6
"""Keys that are held together, besides modifiers: what a USB keyboard's report has room for."""
MAX_WAIT = 60.0
MAX_HOLD = 10.0
MAX_NOTCHES = 100
MAX_REPEAT = 100
MAX_CLICKS = 3


class Point(NamedTuple):
    x: float
    y: float


@dataclass(frozen=True)
class Move:
    to: Point


@dataclass(frozen=True)
class Click:
    """`at` is None where the pointer is now; `modifiers` are codes held meanwhile."""

    at: Point | None
    button: Button = "left"
    count: int = 1
    modifiers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drag:
    """Press at the first point, move through the others, release at the last.

    A path of one point starts where the pointer is now.
    """

    path: tuple[Point, ...]
    button: Button = "left"
    modifiers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Press:
    """Press a button and keep it down; `release_all` lifts it if the model does not."""

    at: Point | None
    button: Button = "left"


@dataclass(frozen=True)
class Release:
    at: Point | None
    button: Button = "left"


@dataclass(frozen=True)
class Scroll:
    """Notches of the wheel: positive `dy` shows what is further up, positive `dx` further right."""

    at: Point | None
    dx: int = 0
    dy: int = 0
    modifiers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Type:
    text: str


@dataclass(frozen=True)
class Key:
    """A chord of keys (see `keys.KEYS`), pressed in order and released in reverse."""

    codes: tuple[str, ...]
    repeat: int = 1
    hold: float = 0.0
    """Seconds between press and release."""


@dataclass(frozen=True)
class Wait:
    seconds: float


@dataclass(frozen=True)
class Screenshot:
    """Look again."""


@dataclass(frozen=True)
class Zoom:
    """Look at a part of the screen in full resolution."""

    upper_left: Point
    lower_right: Point


@dataclass(frozen=True)
class CursorPosition:
    """Where the pointer is, as far as the driver can tell."""


@dataclass(frozen=True)
class Power:
    """The computer's own buttons, through a KVM; always confirmed by the user."""

    what: Literal["press", "hold", "reset"]


@dataclass(frozen=True)
class HidReset:
    """Plug the KVM's keyboard and mouse out and in; always confirmed by the user."""


@dataclass(frozen=True)
class Ask:
    """The model wants something from the user."""

    question: str


@dataclass(frozen=True)
class Done:
    success: bool = True
    answer: str = ""


PointerAction = Move | Click | Drag | Press | Release | Scroll
InputAction = PointerAction | Type | Key | Power | HidReset
"""What changes something on the computer."""
LookAction = Wait | Screenshot | Zoom | CursorPosition
Action = InputAction | LookAction | Ask | Done


def points(action: Action) -> tuple[Point, ...]:
    """Every position that the action names."""
    match action:
        case Move(to):
            return (to,)
        case Click(at) | Press(at) | Release(at) | Scroll(at):
            return () if at is None else (at,)
        case Drag(path):
            return path
        case Zoom(upper_left, lower_right):
            return (upper_left, lower_right)
    return ()


def check(action: Action) -> None:
    """Raises ActionError, saying what is wrong, for anything that must not reach a driver."""
    for point in points(action):
        if not all(math.isfinite(value) and 0 <= value <= 1 for value in point):
            raise ActionError(f"The position ({point.x:g}, {point.y:g}) is not on the screen.")
    match action:
        case Click(count=count, modifiers=modifiers):
            _check_range("The number of clicks", count, 1, MAX_CLICKS)
            _check_codes(modifiers)
        case Drag(path, modifiers=modifiers):
            if not path:
                raise ActionError("The drag has no positions.")
            _check_codes(modifiers)
        case Scroll(dx=dx, dy=dy, modifiers=modifiers):
            _check_range("The scroll's notches", dx, -MAX_NOTCHES, MAX_NOTCHES)
            _check_range("The scroll's notches", dy, -MAX_NOTCHES, MAX_NOTCHES)
            if dx == dy == 0:
                raise ActionError("The scroll goes nowhere.")
            _check_codes(modifiers)
        case Type(text):
            if not text:
                raise ActionError("There is no text to type.")
            _check_range("The length of the text", len(text), 1, MAX_TYPED)
        case Key(codes, repeat, hold):
            if not codes:
                raise ActionError("There are no keys to press.")
            _check_codes(codes)
            _check_range("The number of repeats", repeat, 1, MAX_REPEAT)
            _check_range("The seconds to hold a key", hold, 0, MAX_HOLD)
        case Wait(seconds):
            _check_range("The seconds to wait", seconds, 0, MAX_WAIT)
        case Zoom(upper_left, lower_right):
            if not (upper_left.x < lower_right.x and upper_left.y < lower_right.y):
                raise ActionError("The region to zoom into is empty.")
        case Ask(question):
            if not question.strip():
                raise ActionError("The question is empty.")


def _check_range(what: str, value: float, least: float, most: float) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise ActionError(f"{what} is {value:g}; it must be from {least:g} to {most:,g}.")


def _check_codes(codes: tuple[str, ...]) -> None:
    plain = 0
    for code in codes:
        if code not in KEYS:
            raise ActionError(f"There is no key {code!r}.")
        plain += not KEYS[code].modifier
    if plain > MAX_CHORD:
        raise ActionError(f"{plain} keys at once are too many; at most {MAX_CHORD}.")
    if len(set(codes)) < len(codes):
        raise ActionError("The same key is in the chord twice.")


_TYPES = {kind.__name__: kind for kind in get_args(Action)}


def to_json(action: Action) -> dict[str, Any]:
    """What journals and events hold: `{"action": "Click", "at": [0.5, 0.5], ...}`."""
    return {"action": type(action).__name__, **msgspec.to_builtins(action)}


def from_json(fields: Mapping[str, Any]) -> Action:
    """The action that `to_json` wrote; ActionError for anything else. Checked."""
    rest = {name: value for name, value in fields.items() if name != "action"}
    try:
        action: Action = msgspec.convert(rest, _TYPES[fields["action"]])
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise ActionError(f"{dict(fields)!r:.200} is not an action ({error}).") from error
    check(action)
    return action
