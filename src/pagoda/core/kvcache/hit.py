"""Blocks of the prefix cache, and what was found there of a prompt."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from pagoda.core.kvcache.host_tier import HostBlock

Miss = Literal["new", "evicted", "no_state"]
"""No request computed a block with this content behind this prefix, or it made room for others."""


class CachedBlock(NamedTuple):
    group: int
    hash: bytes
    block: int


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """A cached prefix; its blocks are nobody's until `attach`."""

    num_tokens: int
    tables: list[list[int]]
    """Blocks per group; null where nothing of it will be read, and where it is in the host's
    memory."""
    num_attended: int
    """Tokens that attention alone could have taken."""
    in_host: list[HostBlock]
    """What is to be fetched from there."""
