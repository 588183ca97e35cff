"""Ways to guess tokens ahead, as text and as plain values for `--json`."""

from typing import Any

from pagoda.base.units import format_bytes
from pagoda.doctor.ways import Guesses, Way
from pagoda.planner.devices.guess_speed import CHANCE, tokens_of_step
from pagoda.planner.devices.speed import Range

WORDS = {
    "suffix": "what stood in the request or in recent replies",
    "ngram": "what stood in the request",
    "mtp": "the checkpoint's draft head",
    "draft": "the draft model",
    "eagle3": "the EAGLE head",
}
"""What each method guesses from."""


def guess_lines(guesses: Guesses | None) -> list[str]:
    """What is in use, each way with its speed, and which of them to take."""
    if guesses is None:
        return []
    best = guesses.best
    timed = any(way.gains for way in guesses.ways)
    advice = "none of them is faster here" if timed else "what they gain here is not known"
    if best is not None:
        advice = f"use {best.flags}" if best.flags else "keep it"
        advice += ", where replies repeat their prompts" if best.copies and best.flags else ""
    in_use = "nothing guesses" if guesses.method == "none" else f"{guesses.method} guesses"
    first = f"guesses (estimate, if {CHANCE * 10:g} of 10 come true): {in_use} ({guesses.why})"
    return [f"{first}; {advice}", *(f"  {_line(way)}" for way in guesses.ways)]


def guesses_json(guesses: Guesses) -> dict[str, Any]:
    """`use` has the flags to type, an empty text for none, and null where no guess is known to be
    faster."""
    best = guesses.best
    return {
        "method": guesses.method,
        "why": guesses.why,
        "use": None if best is None else best.flags,
        "chance": CHANCE,
        "ways": [_way_json(way) for way in guesses.ways],
    }


def _way_json(way: Way) -> dict[str, Any]:
    speed = way.decode_range
    return {
        "method": way.method,
        "flags": way.flags,
        "num_speculative_tokens": way.most,
        "memory": way.memory,
        "only_where_replies_repeat": way.copies,
        "tokens_per_step": [round(tokens_of_step(gain.guesses), 2) for gain in way.gains] or None,
        "gain": [round(gain.times, 2) for gain in way.gains] or None,
        "decode_range": None if speed is None else [round(bound, 1) for bound in speed],
        "problem": way.problem or None,
    }


def _line(way: Way) -> str:
    said = f"{way.flags or way.method}: {WORDS[way.method]}"
    if way.most:
        said += f", up to {way.most} tokens at a time"
    if way.decode_range is not None:
        said += f"; {_speed(way, way.decode_range)}"
    if way.memory and not way.copies:
        said += f"; {format_bytes(way.memory)} more memory"
    return said + (f"; not here: {way.problem}" if way.problem else "")


def _speed(way: Way, decode: Range) -> str:
    if not any(gain.guesses for gain in way.gains):
        return "none would be verified, as a guess costs more than it gains"
    span = " to ".join(f"{bound:,.0f}" if bound >= 10 else f"{bound:.1f}" for bound in decode)
    where = "where a reply repeats them, and as without elsewhere" if way.copies else "on any text"
    return f"{span} tokens/s {where}"
