"""What one owner holds of the cache."""

from typing import NamedTuple

from pagoda.core.kvcache.block_pool import NULL_BLOCK


class KeptState(NamedTuple):
    """A state that stays as it is, because later requests may start from it."""

    num_tokens: int
    """It is the state behind so many."""
    block: int
    rolling: bool
    """A state of a reply: the next one of that reply takes its place."""


class BlockTables:
    """The blocks one owner holds: a request, or anything else that needs them to stay.

    A loader from disk, say, opens tables of its own, allocates, fills the blocks, lets
    `advance` publish their hashes, and frees the tables again.
    """

    __slots__ = (
        "capacity", "draft_states", "held", "kept", "latest", "next_advance", "num_cached", "owner",
        "prompt_len", "started", "started_from", "state", "tables", "wanted",
    )  # fmt: skip

    def __init__(self, owner: str, num_groups: int, num_attention: int, block_size: int):
        self.owner = owner
        self.tables: list[list[int]] = [[] for _ in range(num_attention)]
        """Per attention group, the block of each `block_size` positions; all equally long."""
        self.held = [0] * num_groups
        """Per group, the blocks held that are not null."""
        self.reset(block_size)

    def reset(self, block_size: int) -> None:
        """Back to empty; the blocks are no longer this owner's."""
        for table in self.tables:
            table.clear()
        self.held = [0] * len(self.held)
        self.capacity = 0
        """Tokens that the tables have room for."""
        self.num_cached = 0
        """Leading blocks that are in the prefix cache, or had an equal one there."""
        self.next_advance = block_size
        """`advance` has something to do from this many computed tokens on."""
        self.started = False
        """Whether a step was planned."""
        self.started_from = NULL_BLOCK
        """The state that the first step reads, until it is done; null at the start of a text."""
        self.state = NULL_BLOCK
        """The state that the last step planned, or the first one, writes; of a step with drafts,
        the one behind the last known token."""
        self.draft_states: list[int] = []
        """The states that it writes behind each draft, until it is known which one counts."""
        self.kept: list[KeptState] = []
        """States that the prefix cache does not know yet."""
        self.latest: tuple[bytes, int] | None = None
        """Hash and block of the reply's state that was published last; others may have it now."""
        self.prompt_len = 0
        self.wanted: list[int] = []
        """Positions in the prompt, rising, behind which states are kept."""

    @property
    def num_held(self) -> int:
        return sum(self.held)

    @property
    def states(self) -> list[int]:
        """All that are held; null ones among them."""
        kept = [kept.block for kept in self.kept]
        return [self.started_from, self.state, *self.draft_states, *kept]
