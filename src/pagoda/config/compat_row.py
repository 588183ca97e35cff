"""What is known of a flag that only others have, and the fact that its answer rests on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Fact:
    """Why a flag does nothing here, and what shows that it is so.

    `tests/cli/test_compat_facts.py` holds it against the flags of `serve`, the routes that are
    served, the fields that requests may have, the environment and the modules: each of `has` is one
    of these, and no part of `lacks` stands in any of the first three. So what is built tomorrow
    cannot be denied by what is written today.
    """

    text: str
    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compat:
    flags: str
    """All spellings."""
    takes: Literal["-", "0", "v", "?", "*", "j"]
    """A switch with its `--no-` form, one without, a value, perhaps a value, several, or JSON."""
    effect: Literal["none", "later", "refused"]
    """It would change nothing; Pagoda serves without it and says so; serving without it would not
    be what was asked for."""
    why: Fact
    quiet: tuple[str, ...] = ()
    """Values that need no word, because they ask for what happens anyway."""
    means: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Values that say what fields of ours say, and those fields' values."""
