"""Rows of requests that ended while steps were in flight."""

from collections import deque
from collections.abc import Iterator

from pagoda.core.request import Request


class LeavingRows:
    """In a pipeline a step in flight may yet sample a token for such a request, which goes into its
    row: nobody else has the row before that step is committed."""

    def __init__(self, num_stages: int):
        self._waits = num_stages > 1
        self._left: deque[tuple[int, Request]] = deque()
        """Each with the last plan that may have it."""

    def __iter__(self) -> Iterator[Request]:
        return (req for _, req in self._left)

    def leave(self, req: Request, last_step: int) -> list[int]:
        """A request has ended, which plans in flight up to `last_step` may have (0: there are
        none). Its row, if that is free at once."""
        if not self._waits or not last_step:
            return [req.release_row()]
        self._left.append((last_step, req))
        return []

    def committed(self, step_id: int) -> list[int]:
        """The rows that are free once the step and all before it are committed."""
        freed = []
        while self._left and self._left[0][0] <= step_id:
            freed.append(self._left.popleft()[1].release_row())
        return freed
