"""The numbers of the sampler, one row for each.

Requests of each API, flags, a model's defaults, what is checked, and the columns and arguments of
the sampler all follow from these rows. `pagoda.SamplingParams` has a field for each, whose default
is the row's.
"""

import sys
from dataclasses import dataclass

MAX_INT = 2**63 - 1  # what msgpack carries to the engine
_MAX_FLOAT = sys.float_info.max


@dataclass(frozen=True)
class Number:
    name: str
    """In SamplingParams, requests, generation_config.json, flags, and the runner's table."""
    default: float
    """Where it does nothing; an int where it is one."""
    low: float
    high: float
    range: str
    """What it must be, for the error's sake."""
    column: str
    """numpy's name for its type in the runner's table."""
    sampler: str
    """The one of SAMPLERS that it belongs to."""
    native: str
    """llama-server's field for it."""
    open_low: bool = False
    """`low` itself is no value."""
    most: float | None = None
    """The highest that OpenAI's API takes."""
    floor: str | None = None
    """llama-server takes what lies below 0 as 0, which means this."""
    flag: str | None = None
    """llama.cpp's flag, where it is no more than the name."""

    @property
    def kind(self) -> type[int] | type[float]:
        return type(self.default)

    @property
    def flags(self) -> tuple[str, ...]:
        own = "--" + self.name.replace("_", "-")
        return (own,) if self.flag is None else (own, self.flag)

    def holds(self, value: object) -> bool:
        """Whether it may be `value`; an integer is a float, a boolean is neither."""
        kind = type(self.default)
        if type(value) is not kind and (
            not isinstance(value, (kind, int)) or isinstance(value, bool)  # faster
        ):
            return False
        # Compared, not converted: an integer may be larger than any float.
        return self.low <= value <= self.high and not (self.open_low and value == self.low)


NUMBERS = (
    Number("temperature", 1.0, 0, _MAX_FLOAT, "at least 0", "f4", "temperature", "temperature",
           most=2, floor="0 and below are greedy.", flag="--temp"),
    Number("top_p", 1.0, 0, 1, "in (0, 1]", "f8", "top_p", "top_p", open_low=True),
    Number("top_k", 0, -1, MAX_INT, "-1, 0 or more, in 64 bits", "i4", "top_k", "top_k",
           floor="0 and below keep all tokens."),
    Number("min_p", 0.0, 0, 1, "in [0, 1]", "f4", "min_p", "min_p"),
    Number("top_n_sigma", 0.0, -1, 1000, "between -1 and 1000", "f4", "top_n_sigma",
           "top_n_sigma", floor="0 and below keep all tokens.", flag="--top-nsigma"),
    Number("presence_penalty", 0.0, -2, 2, "between -2 and 2", "f4", "penalties",
           "presence_penalty"),
    Number("frequency_penalty", 0.0, -2, 2, "between -2 and 2", "f4", "penalties",
           "frequency_penalty"),
    Number("repetition_penalty", 1.0, 0.01, 100, "between 0.01 and 100", "f4", "penalties",
           "repeat_penalty", flag="--repeat-penalty"),
)  # fmt: skip

SAMPLERS = {
    "penalties": "e", "top_n_sigma": "s", "temperature": "t", "min_p": "m", "top_k": "k",
    "top_p": "p",
}  # fmt: skip
"""In the order in which they are applied, with llama.cpp's letters."""


@dataclass(frozen=True)
class Absent:
    """A sampler of llama.cpp's that Pagoda has not."""

    native: str
    neutral: tuple[int, ...]
    """Values of `native` with which it does nothing."""
    flags: str = ""
    parts: tuple[tuple[str, str], ...] = ()
    """Fields and flags that mean nothing without it."""


ABSENT = (
    Absent("adaptive_target", (-1,), "--adaptive-target",
           (("adaptive_decay", "--adaptive-decay"),)),
    Absent("dry_multiplier", (0,), "--dry-multiplier",
           (("dry_allowed_length", "--dry-allowed-length"), ("dry_base", "--dry-base"),
            ("dry_penalty_last_n", "--dry-penalty-last-n"),
            ("dry_sequence_breakers", "--dry-sequence-breaker"))),
    Absent("dynatemp_range", (0,), "--dynatemp-range", (("dynatemp_exponent", "--dynatemp-exp"),)),
    Absent("min_keep", (0,)),
    Absent("mirostat", (0,), "--mirostat",
           (("mirostat_eta", "--mirostat-lr"), ("mirostat_tau", "--mirostat-ent"))),
    Absent("typical_p", (1,), "--typical --typical-p"),
    Absent("xtc_probability", (0,), "--xtc-probability", (("xtc_threshold", "--xtc-threshold"),)),
)  # fmt: skip


def neutral(sampler: str) -> dict[str, float]:
    """What the numbers of one of SAMPLERS are where it does nothing."""
    return {number.name: number.default for number in NUMBERS if number.sampler == sampler}
