"""Behind which tokens a recurrent layer's state is kept for later requests.

A state cannot be shortened: a prefix is of use only up to where one was kept. Each takes as much
memory as KV of hundreds of tokens, so few are.
"""

from collections.abc import Collection, Sequence

# Of a reply's states only the last is kept, and a new one so often: a turn resumed from it computes
# no more than this many tokens anew.
REPLY_INTERVAL = 64
# The first of the positions that double from here on: of whatever prefix is shared by chance, at
# least half is resumed.
_FIRST_DOUBLING = 512
MOST_SHARE = 1 / 4
"""Share of the memory that kept states may take while nobody uses them."""


def wanted_positions(
    prompt: Sequence[int], turn_ends: Collection[int], block_size: int, branch: int
) -> list[int]:
    """Multiples of `block_size` in rising order, all below the prompt's length.

    They are: the last one (the same prompt again); the last one behind an end of a turn, one of
    the ids `turn_ends` (the next turn of a conversation repeats the prompt up to there, and what
    follows is often rendered anew); doubling distances; and `branch`, where the KV of an earlier
    request ended to be of use but its states had ended before.
    """
    last = len(prompt) - 1
    positions = {last, branch}
    for place in range(last, -1, -1):
        if prompt[place] in turn_ends:
            positions.add(place + 1)
            break
    distance = _FIRST_DOUBLING
    while distance <= last:
        positions.add(distance)
        distance *= 2
    blocks = {min(position, last) // block_size for position in positions}
    return sorted(block * block_size for block in blocks if block > 0)
