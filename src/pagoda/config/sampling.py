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
    """numpy's name for its type in the runner's table; empty for what only a chain of samplers
    reads (`pagoda.runtime.sampling.chain`)."""
    sampler: str
    """The one of SAMPLERS that it belongs to; empty where it is none's."""
    native: str
    """llama-server's field for it."""
    doc: str
    """What it does, for --help."""
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
           "How random the choice of tokens is; 0 always takes the likeliest one.",
           most=2, floor="0 and below are greedy.", flag="--temp"),
    Number("top_p", 1.0, 0, 1, "in (0, 1]", "f8", "top_p", "top_p",
           "Keep only the likeliest tokens whose probabilities sum to X.",
           open_low=True),
    Number("top_k", 0, -1, MAX_INT, "-1, 0 or more, in 64 bits", "i4", "top_k", "top_k",
           "Keep only the N likeliest tokens; 0 keeps all.",
           floor="0 and below keep all tokens."),
    Number("min_p", 0.0, 0, 1, "in [0, 1]", "f4", "min_p", "min_p",
           "Drop tokens with less than X times the probability of the likeliest one."),
    Number("top_n_sigma", 0.0, -1, 1000, "between -1 and 1000", "f4", "top_n_sigma", "top_n_sigma",
           "Keep only logits within X standard deviations of the highest; 0 keeps all.",
           floor="0 and below keep all tokens.", flag="--top-nsigma"),
    Number("presence_penalty", 0.0, -2, 2, "between -2 and 2", "f4", "penalties",
           "presence_penalty",
           "Lower the logits of tokens that the reply has already; below 0 raises them."),
    Number("frequency_penalty", 0.0, -2, 2, "between -2 and 2", "f4", "penalties",
           "frequency_penalty",
           "Lower the logit of a token by X for each time that the reply has it."),
    Number("repetition_penalty", 1.0, 0.01, 100, "between 0.01 and 100", "f4", "penalties",
           "repeat_penalty",
           "Make tokens that the prompt or reply has less likely; 1 changes nothing.",
           flag="--repeat-penalty"),
    Number("dry_multiplier", 0.0, 0, 100, "between 0 and 100", "", "dry", "dry_multiplier",
           "Strength of DRY, which lowers tokens that continue a repetition; 0 is off."),
    Number("dry_base", 1.75, 1, 100, "between 1 and 100", "", "dry", "dry_base",
           "Factor by which DRY's penalty grows with each token of a repetition."),
    Number("dry_allowed_length", 2, 0, MAX_INT, "0 or more, in 64 bits", "", "dry",
           "dry_allowed_length",
           "Longest repetition, in tokens, that DRY leaves alone."),
    Number("dry_penalty_last_n", -1, -1, MAX_INT, "-1, 0 or more, in 64 bits", "", "dry",
           "dry_penalty_last_n",
           "How many tokens back DRY looks; -1 is the whole context."),
    Number("typical_p", 1.0, 0, 1, "in (0, 1]", "", "typ_p", "typical_p",
           "Keep only the tokens of about average surprise whose probabilities sum to X.",
           open_low=True, flag="--typical"),
    Number("xtc_probability", 0.0, 0, 1, "in [0, 1]", "", "xtc", "xtc_probability",
           "How often XTC drops all likely tokens but the least likely of them; 0 is off."),
    Number("xtc_threshold", 0.1, 0, 1, "in [0, 1]", "", "xtc", "xtc_threshold",
           "Probability from which on XTC counts a token as likely."),
    Number("dynatemp_range", 0.0, 0, 100, "between 0 and 100", "", "temperature", "dynatemp_range",
           "How far the temperature moves with the model's uncertainty; 0 is off."),
    Number("dynatemp_exponent", 1.0, 0, 100, "between 0 and 100", "", "temperature",
           "dynatemp_exponent",
           "Exponent of the uncertainty in --dynatemp-range.",
           flag="--dynatemp-exp"),
    Number("mirostat", 0, 0, 2, "0, 1 or 2", "", "", "mirostat",
           "Sample with Mirostat 1 or 2, which aims at a given surprise; 0 is off."),
    Number("mirostat_tau", 5.0, 0, 100, "between 0 and 100", "", "", "mirostat_tau",
           "Surprise per token that Mirostat aims at.",
           flag="--mirostat-ent"),
    Number("mirostat_eta", 0.1, 0, 100, "between 0 and 100", "", "", "mirostat_eta",
           "How fast Mirostat adapts.",
           flag="--mirostat-lr"),
    Number("min_keep", 0, 0, MAX_INT, "0 or more, in 64 bits", "", "", "min_keep",
           "Fewest tokens that the filters leave."),
)  # fmt: skip

SAMPLERS = {
    "penalties": "e", "dry": "d", "top_n_sigma": "s", "top_k": "k", "typ_p": "y", "top_p": "p",
    "min_p": "m", "xtc": "x", "temperature": "t",
}  # fmt: skip
"""In llama.cpp's order, with its letters."""
ENGINE_ORDER = ("penalties", "top_n_sigma", "temperature", "min_p", "top_k", "top_p")
"""Those that any request may have, in the order in which they are applied where none is asked for:
vLLM's. `SamplingParams.chain` says which requests follow another."""
DRY_BREAKERS = ("\n", ":", '"', "*")
"""Where DRY's repetitions begin anew, unless told otherwise."""
# As llama.cpp's flags and older clients spell them.
_OTHER_NAMES = {
    "temp": "temperature", "typical": "typ_p", "typical_p": "typ_p", "typ": "typ_p",
    "nucleus": "top_p",
}  # fmt: skip
_ABSENT_NAMES = {"adaptive_p": "a"}
"""Samplers that may be named: what would make them do something is refused."""


def sampler_order(given: str | list[str]) -> list[str]:
    """Names of SAMPLERS in the order in which they are given: as names, or letters in a string.

    ValueError says which name is none.
    """
    if isinstance(given, str):
        names = {letter: name for name, letter in (SAMPLERS | _ABSENT_NAMES).items()}
    else:
        names = {name: name for name in (*SAMPLERS, *_ABSENT_NAMES)} | _OTHER_NAMES
    order: dict[str, None] = {}
    for text in given:
        key = text if isinstance(given, str) else text.strip().lower().replace("-", "_")
        if key not in names:
            known = ", ".join(f"{name} ({letter})" for name, letter in SAMPLERS.items())
            raise ValueError(f"there is no sampler {text[:64]!r}; there are {known}")
        if names[key] in SAMPLERS:
            order[names[key]] = None
    return list(order)


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
)  # fmt: skip


def neutral(sampler: str) -> dict[str, float]:
    """What the numbers of one of SAMPLERS are where it does nothing."""
    return {number.name: number.default for number in NUMBERS if number.sampler == sampler}
