"""What guesses tokens ahead, and how many at a time."""

from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import ConfigError
from pagoda.config.speculation import SpeculationConfig
from pagoda.planner.reason import Reason
from pagoda.planner.resolved import ResolvedSpeculation, SpeculationMethod

MODES = ("auto", "stable", "fast")
# More devices hide more of a draft's time: three tokens suit one or two, four suit more.
_FEW_DEVICES = 2
_LENGTHS = {"stable": 3, "fast": 4}
# Behind a long match nearly all of so many come true, and more of them save little further time.
_MOST_COPIED = 24
# With more rows a step's time grows with each of them.
_MOST_IN_STEP = 32
_ASKED = "asked for"


def speculative_tokens(mode: str, devices: int, drafts: bool, override: int | None) -> Reason:
    """The length for `mode` (auto, stable, fast) on so many devices; 0 where the checkpoint has no
    draft head (`drafts`). `override` wins over the mode. ConfigError for another mode."""
    name = "speculative_tokens"
    if mode not in MODES:
        raise ConfigError(f"--mode {mode} is not known; it is one of {', '.join(MODES)}.")
    if not drafts:
        return Reason(name, 0, "the checkpoint has no draft head (MTP tensors)")
    if override is not None:
        return Reason(name, override, "PAGODA_SPEC_TOKENS")
    if mode in _LENGTHS:
        return Reason(name, _LENGTHS[mode], f"--mode {mode}")
    length = 3 if devices <= _FEW_DEVICES else 4
    return Reason(name, length, f"--mode auto on {devices} device{'s' * (devices > 1)}")


def resolve_speculation(
    asked: SpeculationConfig, spec: ModelSpec, device: str, reasons: list[Reason]
) -> ResolvedSpeculation:
    """What guesses for this model; ConfigError for counts that contradict each other."""
    if spec.encoder is not None or not spec.writes_text:
        return ResolvedSpeculation()
    method: SpeculationMethod
    match asked.method:
        case "none" | "ngram" | "suffix":
            method, why = asked.method, _ASKED
        case "auto" if device == "cpu":
            method, why = "suffix", "replies repeat their prompts and one another"
        case "auto":
            method, why = "none", f"default on {device}"
        case later:
            method, why = "suffix", f"in place of {later}, which is not there yet"
    if len(spec.attentions) < len(spec.layers) and method != "none":
        method, why = "none", "states of recurrent layers cannot go back yet"
    most = asked.count("num_speculative_tokens", _MOST_COPIED)
    if not most:
        method, why = "none", "no tokens are to be guessed"
    if why != _ASKED:
        reasons.append(Reason("speculation", method, why))
    if method == "none":
        return ResolvedSpeculation()
    least = max(1, asked.count("min_speculative_tokens", 1))
    longest = asked.count("prompt_lookup_max", asked.count("prompt_lookup_min", 32))
    shortest = asked.count("prompt_lookup_min", 2)
    for low, high in ((least, most), (shortest, longest)):
        if low > high:
            raise ConfigError(
                f"--speculative-config asks for at least {low} and at most {high} tokens; "
                "raise one or lower the other."
            )
    return ResolvedSpeculation(
        method, most, max(most, _MOST_IN_STEP), least, max(2, shortest), max(2, longest)
    )
