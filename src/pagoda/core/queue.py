"""Requests in the order in which they are served."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from pagoda.core.request import Request

_key = attrgetter("key")


class RequestQueue:
    """Requests sorted by their key, (priority, arrival).

    A preempted request thereby returns to its old place. Insertion and removal move pointers in
    one memmove, a few microseconds at 10,000 requests.
    """

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """Requests may be taken from the end (only) while iterating."""
        return iter(self._requests)

    def __getitem__(self, index: int) -> Request:
        return self._requests[index]

    def push(self, req: Request) -> None:
        insort(self._requests, req, key=_key)

    def remove(self, req: Request) -> None:
        """Take out a request that is in the queue."""
        del self._requests[bisect_left(self._requests, req.key, key=_key)]

    def pop_last(self) -> Request:
        return self._requests.pop()
