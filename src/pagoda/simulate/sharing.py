"""Engines and a server that share the same cores."""

from dataclasses import dataclass
from typing import NamedTuple

from pagoda.base.errors import ConfigError
from pagoda.planner.devices.step_table import Beside, Served, StepProfile


class Pace(NamedTuple):
    """What becomes of a step's time; with these values nothing does."""

    decode: float = 1.0
    """Steps without prompts take so many times as long,"""
    prompt: float = 1.0
    """and those with prompts."""
    server: float = 0.0
    """Seconds that a second of the server's CPU time adds."""


class Work(NamedTuple):
    """What a step takes from the machine."""

    seconds: float
    """What it takes an engine alone."""
    is_prompt: bool = False
    cpu: float = 0.0
    """Seconds of CPU time of the server and the client."""

    def at(self, pace: Pace) -> float:
        """Seconds that it takes, at a pace that stays."""
        factor = pace.prompt if self.is_prompt else pace.decode
        return self.seconds * factor + self.cpu * pace.server


@dataclass(frozen=True)
class Sharing:
    """How a machine's cores are shared, as a profile has measured it."""

    cores: int = 0
    """0: nothing is shared."""
    threads: int = 0
    """CPUs that an engine computes with."""
    beside: tuple[Beside, ...] = ()
    served: Served = Served()

    @classmethod
    def of(cls, profile: StepProfile, engines: int) -> "Sharing":
        """That of so many engines on the profile's machine. Raises ConfigError where it was not
        measured with as many."""
        known = {one.engines: one for one in profile.beside}
        missing = [count for count in range(2, engines + 1) if count not in known]
        if missing:
            raise ConfigError(
                f"The profile does not say what steps take while {missing[-1]} engines compute. "
                f"Measure it with `pagoda bench step-times --data-parallel-size {engines}`."
            )
        beside = tuple(known[count] for count in range(2, engines + 1))
        return cls(profile.cores, profile.threads, beside, profile.served)

    def delay(self, num_busy: int) -> float:
        """Seconds from a request until its engine knows of it, while so many compute. The server's
        thread takes turns with theirs where there are more of them than cores."""
        crowd = (num_busy * self.threads + 1) / self.cores if self.cores else 1.0
        return self.served.request * max(1.0, crowd)

    def pace(self, num_busy: int) -> Pace:
        """The pace of each engine while so many compute.

        As long as a core is free the server computes there. Else its work takes time of
        all cores, and each engine misses its part of it.
        """
        decode, prompt = 1.0, 1.0
        if num_busy > 1 and self.beside:
            found = self.beside[num_busy - 2]
            decode, prompt = found.decode, found.prompt
        taken = num_busy * self.threads >= self.cores > 0
        return Pace(decode, prompt, num_busy / self.cores if taken else 0.0)
