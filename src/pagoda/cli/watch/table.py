"""Servers as lines of a table."""

from collections.abc import Iterable, Sequence

from pagoda.base import columns
from pagoda.base.printable import for_terminal
from pagoda.base.units import format_bytes
from pagoda.base.words import say, tell, told
from pagoda.cli.watch.servers import ModelLoad, ServerLoad

_HEAD = (say("PORT"), "PID", say("MODEL"), say("RUNNING"), say("WAITING"), "KV", say("MEMORY"),
         say("UP"))  # fmt: skip
_RATES = (say("PROMPT tok/s"), say("REPLY tok/s"), "CPU")
# The models' names.
_TEXTS = {2}


def table(loads: Iterable[ServerLoad]) -> list[str]:
    """A line for each model of each server, below a heading."""
    rows = [row for load in loads for row in _rows(load)]
    return _lines(_HEAD, rows)


def table_of_rates(before: Iterable[ServerLoad], now: Iterable[ServerLoad]) -> list[str]:
    """The same with what was done since `before`, a second per second."""
    earlier = {(load.port, load.pid): load for load in before}
    rows = []
    for load in now:
        past = earlier.get((load.port, load.pid))
        seconds = 0.0 if past is None else load.at - past.at
        for row, name in zip(_rows(load), _names(load), strict=True):
            rates = ("", "", "")
            if past is not None and seconds > 0:
                cpu = max(0.0, load.cpu_seconds - past.cpu_seconds) / seconds
                rates = (*_tokens(past.models.get(name), load.models.get(name), seconds),
                         f"{cpu:.0%}")  # fmt: skip
            rows.append((*row[:6], *rates, *row[6:]))
    return _lines((*_HEAD[:6], *_RATES, *_HEAD[6:]), rows)


def _tokens(past: ModelLoad | None, now: ModelLoad | None, seconds: float) -> tuple[str, str]:
    if past is None or now is None:
        return "", ""
    # An engine that was started anew counts from 0.
    prompt = max(0.0, now.prompt_tokens - past.prompt_tokens)
    reply = max(0.0, now.generated_tokens - past.generated_tokens)
    return f"{prompt / seconds:,.0f}", f"{reply / seconds:,.0f}"


def _rows(load: ServerLoad) -> list[tuple[str, ...]]:
    server = (str(load.port), str(load.pid))
    end = (format_bytes(load.memory), _span(load.up_seconds))
    rows: list[tuple[str, ...]] = [
        (*server, for_terminal(name), f"{model.running:g}", f"{model.waiting:g}",
         f"{model.kv_usage:.0%}", *end)
        for name, model in load.models.items()
    ]  # fmt: skip
    if not load.problem and rows:
        return rows
    said = f"({for_terminal(told(load.problem or say('no model is loaded')))})"
    if len(rows) == 1:
        port, pid, name, *others = rows[0]
        return [(port, pid, f"{name} {said}", *others)]
    return [*rows, (*server, said, "", "", "", *end)]


def _names(load: ServerLoad) -> list[str]:
    """The model of each of `_rows`."""
    names = list(load.models)
    return names if len(names) == 1 or (names and not load.problem) else [*names, ""]


def _span(seconds: float) -> str:
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if hours >= 48:
        return tell("{days} days", days=hours // 24)
    if hours:
        return tell("{hours} h {minutes} min", hours=hours, minutes=minutes % 60)
    return tell("{minutes} min {seconds} s", minutes=minutes, seconds=int(seconds) % 60)


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return columns.table([told(name) for name in head], rows, _TEXTS)
