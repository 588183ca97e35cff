"""Prompt blocks that a running request is about to compute."""

from collections.abc import Sequence

from pagoda.core.request import Request


class PrefixesInFlight:
    """Block hash -> the running request that computes it.

    A request whose next missing block is in here waits for it instead of computing it again:
    that is how n > 1 and a burst of equal system prompts share blocks. The owner runs and the
    waiter holds nothing, so the wait ends: the block is published, or the owner leaves.
    """

    def __init__(self) -> None:
        self._owner_of: dict[bytes, Request] = {}

    def __contains__(self, block_hash: object) -> bool:
        return block_hash in self._owner_of

    def claim(self, req: Request, hashes: Sequence[bytes]) -> None:
        for block_hash in hashes:
            self._owner_of.setdefault(block_hash, req)

    def release(self, req: Request, hashes: Sequence[bytes]) -> None:
        """Published, or given up; hashes that are not this request's are left alone."""
        owner_of = self._owner_of
        for block_hash in hashes:
            if owner_of.get(block_hash) is req:
                del owner_of[block_hash]

    def check(self) -> None:
        """RuntimeError where an owner no longer runs: its waiters would wait forever."""
        for req in self._owner_of.values():
            if not req.is_running:
                raise RuntimeError(f"Request {req.req_id} claims a block but does not run.")
