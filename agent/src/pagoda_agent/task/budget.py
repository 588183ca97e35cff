"""Hard caps on what a run may use: rounds, tokens, money and time."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from pagoda_agent.base.errors import AgentError, ConfigError
from pagoda_agent.models.dialogue import Usage


class BudgetError(AgentError):
    """A cap is reached. `cap` is its name: rounds, tokens, cost or seconds."""

    def __init__(self, cap: str, message: str):
        super().__init__(message)
        self.cap = cap


@dataclass(frozen=True)
class Caps:
    """None is no cap."""

    rounds: int | None = 20
    """Calls of the model; nanokvm_cua's MAX_ROUNDS."""
    tokens: int | None = None
    """Input, cached ones too, and output."""
    cost: float | None = None
    """In the currency of the prices."""
    seconds: float | None = None
    """Wall-clock time, without that in which the run waits for the user."""


@dataclass(frozen=True)
class Price:
    """For a million tokens."""

    input: float
    output: float
    cached: float | None = None
    """Price of input that the server had computed already; None: that of other input."""

    def of(self, usage: Usage) -> float:
        cached = self.input if self.cached is None else self.cached
        fresh = usage.input_tokens - usage.cached_tokens
        spent = fresh * self.input + usage.cached_tokens * cached
        return (spent + usage.output_tokens * self.output) / 1e6


@dataclass(frozen=True)
class Spent:
    """What a run has used; a resumed run begins with it."""

    rounds: int = 0
    usage: Usage = Usage()
    cost: float = 0.0
    """0 without prices."""
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return self.usage.input_tokens + self.usage.output_tokens


class Budget:
    """Counts what is used. `before_call` and `after_call` stand around each call of the model."""

    def __init__(
        self,
        caps: Caps,
        price: Price | None = None,
        spent: Spent | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        if caps.cost is not None and price is None:
            raise ConfigError("A cap on the cost needs the prices of a million tokens.")
        for name in ("rounds", "tokens", "cost", "seconds"):
            cap = getattr(caps, name)
            if cap is not None and not cap > 0:
                raise ConfigError(f"The cap on {name} is {cap}; it must be more than 0.")
        self.caps = caps
        self._price = price
        self._spent = spent or Spent()
        self._clock = clock
        self._earlier = self._spent.seconds
        self._running_since: float | None = clock()

    @property
    def spent(self) -> Spent:
        now = self._spent
        return Spent(now.rounds, now.usage, now.cost, self._seconds())

    def pause(self) -> None:
        """The run waits for the user; harmless when repeated."""
        self._earlier = self._seconds()
        self._running_since = None

    def resume(self) -> None:
        if self._running_since is None:
            self._running_since = self._clock()

    def seconds_left(self) -> float | None:
        """For the timeout of what comes next; None without a cap."""
        return None if self.caps.seconds is None else max(0.0, self.caps.seconds - self._seconds())

    def before_call(self) -> None:
        """Raises BudgetError where a cap leaves nothing for another call."""
        for name, cap, used in self._uses():
            if used >= cap:
                raise _reached(name, cap, used)

    def after_call(self, usage: Usage) -> None:
        """Count a call. Raises BudgetError where it went beyond a cap, or where a cap cannot be
        kept because the server does not say what was used."""
        now = self._spent
        cost = self._price.of(usage) if self._price else 0.0
        self._spent = Spent(now.rounds + 1, now.usage + usage, now.cost + cost)
        for name, cap, used in self._uses():
            if used > cap:
                raise _reached(name, cap, used)
            if name in ("tokens", "cost") and usage == Usage():
                raise BudgetError(
                    name,
                    f"The model's server does not say how many tokens it used, so the cap on "
                    f"{name} cannot be kept. Cap rounds or seconds instead.",
                )

    def _uses(self) -> list[tuple[str, float, float]]:
        """(name, cap, used) of each cap that is set."""
        spent = self.spent
        pairs = [
            ("rounds", self.caps.rounds, spent.rounds),
            ("tokens", self.caps.tokens, spent.tokens),
            ("cost", self.caps.cost, spent.cost),
            ("seconds", self.caps.seconds, spent.seconds),
        ]
        return [(name, cap, used) for name, cap, used in pairs if cap is not None]

    def _seconds(self) -> float:
        running = 0.0 if self._running_since is None else self._clock() - self._running_since
        return self._earlier + running


def _reached(name: str, cap: float, used: float) -> BudgetError:
    shown = {
        "rounds": f"{used:,.0f} of {cap:,.0f} rounds are used",
        "tokens": f"{used:,.0f} of {cap:,.0f} tokens are used",
        "cost": f"{used:,.4f} of {cap:,.4f} are spent",
        "seconds": f"{used:,.0f} of {cap:,.0f} seconds are over",
    }[name]
    flag = "minutes" if name == "seconds" else name
    return BudgetError(
        name,
        f"The cap on {name} is reached: {shown}. To go on: "
        f"`pagoda agent resume RUN --max-{flag} N`.",
    )
