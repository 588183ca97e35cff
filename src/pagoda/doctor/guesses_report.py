"""Ways to guess tokens ahead, as text and as plain values for `--json`."""

from typing import Any

from pagoda.base.units import format_bytes
from pagoda.base.words import say, with_semicolons
from pagoda.doctor.ways import Guesses, Way
from pagoda.planner.devices.guess_speed import CHANCE, tokens_of_step
from pagoda.planner.devices.speed import Range

WORDS = {
    "suffix": say("what stood in the request or in recent replies"),
    "ngram": say("what stood in the request"),
    "mtp": say("the checkpoint's draft head"),
    "draft": say("the draft model"),
    "eagle3": say("the EAGLE head"),
}
"""What each method guesses from."""


def guess_lines(guesses: Guesses | None) -> list[str]:
    """What is in use, each way with its speed, and which of them to take."""
    if guesses is None:
        return []
    best = guesses.best
    timed = any(way.gains for way in guesses.ways)
    advice = say("none of them is faster here" if timed else "what they gain here is not known")
    if best is not None and not best.flags:
        advice = say("keep it")
    elif best is not None:
        advice = say(
            "use {flags}, where replies repeat their prompts" if best.copies else "use {flags}",
            flags=best.flags,
        )
    in_use = say(
        "off" if guesses.method == "none" else "{method} is on",
        method=guesses.method,
    )
    first = say(
        "speculation (tokens guessed ahead; estimate, if {right:g} of 10 guesses are right): "
        "{in_use} ({why}); {advice}",
        right=CHANCE * 10,
        in_use=in_use,
        why=guesses.why,
        advice=advice,
    )
    return [first, *(say("  {way}", way=_line(way)) for way in guesses.ways)]


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
    said = say(
        "{way} guesses from {from_what}, up to {most} tokens at a time"
        if way.most
        else "{way} guesses from {from_what}",
        way=way.flags or way.method,
        from_what=WORDS[way.method],
        most=way.most,
    )
    parts: list[str] = [said]
    if way.decode_range is not None:
        parts.append(_speed(way, way.decode_range))
    if way.memory and not way.copies:
        parts.append(say("{size} more memory", size=format_bytes(way.memory)))
    if way.problem:
        parts.append(say("not here: {problem}", problem=way.problem))
    return with_semicolons(parts)


def _speed(way: Way, decode: Range) -> str:
    if not any(gain.guesses for gain in way.gains):
        return say("none would be verified, as a guess costs more than it gains")
    low, high = (f"{bound:,.0f}" if bound >= 10 else f"{bound:.1f}" for bound in decode)
    return say(
        "{low} to {high} tokens/s where a reply repeats it, no faster elsewhere"
        if way.copies
        else "{low} to {high} tokens/s on any text",
        low=low,
        high=high,
    )
