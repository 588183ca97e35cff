"""How many tokens a draft head proposes at a time."""

from pagoda.base.errors import ConfigError
from pagoda.planner.reason import Reason

MODES = ("auto", "stable", "fast")
# More devices hide more of a draft's time: three tokens suit one or two, four suit more.
_FEW_DEVICES = 2
_LENGTHS = {"stable": 3, "fast": 4}


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
