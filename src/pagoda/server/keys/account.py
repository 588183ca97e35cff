"""Named keys while the server runs: what each may do, and how much of it is used."""

import math
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from starlette.types import Scope

from pagoda.server.errors import ApiError
from pagoda.server.keys.file import KeyEntry
from pagoda.server.keys.usage import Ledger, seconds_of_day_left
from pagoda.server.keys.window import Window

_ADMITTED = "pagoda.admitted"
"""Where a scope has the leases of the request that was counted: some routes hand one on."""


def no_key() -> ApiError:
    return ApiError(
        401,
        "The API key is missing or wrong; send it as `Authorization: Bearer KEY` or as "
        "`x-api-key: KEY`.",
        headers={"WWW-Authenticate": "Bearer"},
    )


class Account:
    def __init__(
        self, name: str, entry: KeyEntry, ledger: Ledger,
        clock: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        self.name = name
        self.entry = entry
        self.ledger = ledger
        self.open = True
        """False once the key was removed, disabled or replaced: a connection may outlive it."""
        self._clock = clock
        self._requests, self._tokens = Window(), Window()
        self._running = 0

    def may_use(self, names: Collection[str]) -> bool:
        """Whether it may use what has these names."""
        allowed = self.entry.models
        return allowed is None or not set(names).isdisjoint(allowed)

    def admit(self, model: str) -> None:
        """Count a request, which runs until `leave`. Raises ApiError 401 for a key that is no more,
        429 beyond a limit; nothing is counted then."""
        if not self.open:
            raise no_key()
        entry, now = self.entry, self._clock()
        if entry.parallel is not None and self._running >= entry.parallel:
            raise _over(f"{entry.parallel} requests at a time", 1)
        most = entry.requests_per_minute
        if most is not None and self._requests.used(now) >= most:
            raise _over(f"{most} requests per minute", self._requests.wait(now, most - 1))
        self.check_tokens()
        self._requests.add(1, now)
        self.ledger.add(self.name, model, requests=1)
        self.enter()

    def enter(self) -> None:
        """One more runs."""
        self._running += 1

    def leave(self) -> None:
        self._running -= 1

    def check_tokens(self) -> None:
        """ApiError 429 where none are left. How many a request takes is known when it has ended, so
        the last one may go beyond the limit."""
        entry, now = self.entry, self._clock()
        most = entry.tokens_per_minute
        if most is not None and self._tokens.used(now) >= most:
            raise _over(f"{most} tokens per minute", self._tokens.wait(now, most - 1))
        most = entry.tokens_per_day
        if most is not None and self.ledger.tokens_today(self.name) >= most:
            raise _over(f"{most} tokens per day", seconds_of_day_left())

    def spend(self, model: str, *, prompt: int = 0, completion: int = 0, cached: int = 0) -> None:
        self.ledger.add(self.name, model, prompt=prompt, completion=completion, cached=cached)
        if prompt or completion:
            self._tokens.add(prompt + completion, self._clock())

    def headers(self) -> dict[str, str]:
        """OpenAI's, of the limits that there are. Those of tokens tell of the minute, else of the
        day."""
        entry, now = self.entry, self._clock()
        told: dict[str, str] = {}
        if entry.requests_per_minute is not None:
            used, reset = self._requests.used(now), self._requests.wait(now, 0)
            told |= _told("requests", entry.requests_per_minute, used, reset)
        if entry.tokens_per_minute is not None:
            used, reset = self._tokens.used(now), self._tokens.wait(now, 0)
            told |= _told("tokens", entry.tokens_per_minute, used, reset)
        elif entry.tokens_per_day is not None:
            used = self.ledger.tokens_today(self.name)
            told |= _told("tokens", entry.tokens_per_day, used, seconds_of_day_left())
        return told


@dataclass(frozen=True)
class Meter:
    """Counts what a request to a model takes, for its key."""

    account: Account
    model: str

    def check(self) -> None:
        """As Account.check_tokens: others of the key may have run meanwhile."""
        self.account.check_tokens()

    def count(self, *, prompt: int = 0, completion: int = 0, cached: int = 0) -> None:
        self.account.spend(self.model, prompt=prompt, completion=completion, cached=cached)


# Of a request and the tasks that it starts. What counts tokens is far below the routes, and none of
# what lies between has to do with keys.
_asking: ContextVar[Account | None] = ContextVar("asking", default=None)


@contextmanager
def asked_by(account: Account) -> Iterator[None]:
    token = _asking.set(account)
    try:
        yield
    finally:
        _asking.reset(token)


def asking() -> Account | None:
    """Whose request this is; None without named keys, and for one of --api-key."""
    return _asking.get()


def meter_of(model: str) -> Meter | None:
    account = asking()
    return None if account is None else Meter(account, model)


def admitted(scope: Scope, leases: ExitStack, model: str) -> None:
    """Count the request, once, until its leases end. Raises as Account.admit."""
    account = asking()
    if account is not None and scope.get(_ADMITTED) is not leases:
        account.admit(model)
        scope[_ADMITTED] = leases
        leases.callback(account.leave)


def may_manage() -> bool:
    """Whether who asks may change the server, not only ask its models."""
    account = asking()
    return account is None or account.entry.admin


def check_manages() -> None:
    """ApiError 403 unless `may_manage`."""
    if not may_manage():
        raise ApiError(403, "This key may ask models and not manage the server; that takes a key "
                       "with `admin`, or one of --api-key.")  # fmt: skip


def _over(limit: str, wait: float) -> ApiError:
    seconds = max(1, math.ceil(wait))
    return ApiError(
        429,
        f"The key's limit of {limit} is reached; try again in {seconds} s.",
        headers={"Retry-After": str(seconds)},
    )


def _told(kind: str, limit: int, used: int, reset: float) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{kind}": str(limit),
        f"x-ratelimit-remaining-{kind}": str(max(0, limit - used)),
        f"x-ratelimit-reset-{kind}": _span(math.ceil(reset)),
    }


def _span(seconds: int) -> str:
    """As OpenAI writes times: 1h2m3s, 6m0s, 7s."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
