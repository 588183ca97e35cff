"""What guesses tokens ahead, and how many at a time."""

from dataclasses import replace
from typing import cast

from pagoda.arch.spec import ModelSpec
from pagoda.base import env
from pagoda.base.errors import ConfigError
from pagoda.base.words import say
from pagoda.config.engine import EngineConfig
from pagoda.config.speculation import MODES
from pagoda.planner.memory.tensors import parameter_count
from pagoda.planner.reason import Reason
from pagoda.planner.resolved import ResolvedSpeculation, SpeculationMethod

# More devices hide more of a draft's time: three tokens suit one or two, four suit more.
_FEW_DEVICES = 2
_LENGTHS = {"stable": 3, "fast": 4}
# Behind a long match nearly all of so many come true, and more of them save little further time.
_MOST_COPIED = 24
# Each takes a step of the draft model, and few are right behind so many.
_MOST_DRAFTED = 5
# With more rows a step's time grows with each of them.
_MOST_IN_STEP = 32
_NO_HEAD = say("the checkpoint has no draft head (MTP tensors)")
_ASKED = say("asked for")


def speculative_tokens(mode: str, devices: int, drafts: bool, override: int | None) -> Reason:
    """The length for `mode` (auto, stable, fast) on so many devices; 0 where the checkpoint has no
    draft head (`drafts`). `override` wins over the mode. ConfigError for another mode."""
    name = "speculative_tokens"
    if mode not in MODES:
        raise ConfigError(f"--mode {mode} is not known; it is one of {', '.join(MODES)}.")
    if not drafts:
        return Reason(name, 0, _NO_HEAD)
    if override is not None:
        return Reason(name, override, "PAGODA_SPEC_TOKENS")
    if mode in _LENGTHS:
        return Reason(name, _LENGTHS[mode], f"--mode {mode}")
    length = 3 if devices <= _FEW_DEVICES else 4
    why = say(
        "--mode auto on {count} device" if devices == 1 else "--mode auto on {count} devices",
        count=devices,
    )
    return Reason(name, length, why)


def with_draft_head(spec: ModelSpec, config: EngineConfig) -> ModelSpec:
    """The spec with its draft head loaded where that is to guess."""
    if spec.drafts or _why_no_head(spec, config) or _method(spec, config)[0] != "mtp":
        return spec
    return spec.drafting()


def resolve_speculation(
    config: EngineConfig, spec: ModelSpec, device: str, reasons: list[Reason]
) -> ResolvedSpeculation:
    """What guesses for this model, as `with_draft_head` left it; ConfigError for counts that
    contradict each other."""
    if spec.encoder is not None or not spec.writes_text:
        return ResolvedSpeculation()
    asked = config.speculation
    method, why = _method(spec, config)
    head = None if spec.draft_head is None or not spec.drafts else spec.draft_head.eagle3
    if method == "mtp" and not spec.drafts:
        method, why = "suffix", say("in place of mtp: {why}", why=_why_no_head(spec, config))
    elif method == "draft" and spec.draft_model is not None:
        size = parameter_count(spec.draft_model) / 1e6
        why = say("by {model} of {size:,.1f}M parameters", model=asked.model, size=size)
    elif method == "eagle3" and head is not None:
        layers = ", ".join(map(str, head.reads))
        why = say(
            "{head}, which reads what goes into layers {layers}", head=head.source, layers=layers
        )
    if method == "auto":
        method, why = "none", say("default on {device}", device=device)
        if device == "cpu":
            method, why = "suffix", say("replies repeat their prompts and one another")
        if asked.has_mode:
            why = say(
                "--mode {mode} is for a draft head; {why}",
                mode=asked.mode,
                why=_why_no_head(spec, config),
            )
    most = asked.count(
        "num_speculative_tokens", _MOST_DRAFTED if method == "draft" else _MOST_COPIED
    )
    if method in ("mtp", "eagle3"):
        devices = config.parallel.num_ranks
        length = speculative_tokens(asked.mode, devices, True, env.get("PAGODA_SPEC_TOKENS"))
        most = asked.count("num_speculative_tokens", int(length.value))
        reasons.append(replace(length, value=most))
    if not most:
        method, why = "none", say("no tokens are to be guessed")
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
    chosen = cast(SpeculationMethod, method)
    in_step = max(most, _MOST_IN_STEP)
    return ResolvedSpeculation(chosen, most, in_step, least, max(2, shortest), max(2, longest))


def _method(spec: ModelSpec, config: EngineConfig) -> tuple[str, str]:
    """What was asked for, and why that is taken; a mode asks for the head where there is one."""
    asked = config.speculation
    if asked.method == "auto" and asked.has_mode and spec.draft_head is not None:
        return "mtp", say("--mode {mode}, and the checkpoint has a draft head", mode=asked.mode)
    return asked.method, _ASKED


def _why_no_head(spec: ModelSpec, config: EngineConfig) -> str:
    if spec.draft_head is None:
        return _NO_HEAD
    if config.parallel.num_ranks > 1:
        return say("a head drafts on one device only")
    return ""
