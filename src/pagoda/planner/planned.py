"""How a model would run beside what runs already, in the few words that a list has room for."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from pagoda.config.engine import EngineConfig

Verdict = Literal["fits", "fits_after_unloading", "too_large", "unknown"]


class PlannedModel(msgspec.Struct, frozen=True):
    verdict: Verdict
    """`unknown` where it could not be planned."""
    problem: str = ""
    """Why it does not fit, or could not be planned."""
    memory: int = 0
    """Bytes of memory, KV pool and all; 0 where it does not fit."""
    file_bytes: int = 0
    """Bytes of its weight files; 0 where they are not known."""
    context: int = 0
    """Tokens that a request can have."""
    writes: bool = True
    """It writes text; other models make vectors."""
    tokens_per_second: float = 0.0
    """How fast one reply is written behind a usual context; 0 where nothing is known."""
    slowest: float = 0.0
    fastest: float = 0.0
    """What `tokens_per_second` lies between."""
    disturbed: float = 0.0
    """Share of the CPU that other programs used while its speed was measured."""


@dataclass(frozen=True)
class PlanQuestion:
    config: EngineConfig
    freed: int = 0
    """Bytes that unloading others would give back."""


Planner = Callable[[PlanQuestion], Awaitable[PlannedModel]]


@dataclass(frozen=True)
class Advice:
    """What a server is told of models that it does not have: by the doctor, which it may not
    import."""

    plan: Planner
    known: Callable[[], list[str]]
    """Models that can be planned without a network."""
