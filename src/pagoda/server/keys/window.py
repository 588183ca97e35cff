"""What was used in the last minute."""

from collections import deque

SECONDS = 60


class Window:
    """Sums per second, so that a minute takes at most 61 numbers whatever the rate. An amount
    counts for a minute at least and a second more at most."""

    def __init__(self) -> None:
        self._cells: deque[list[int]] = deque()
        """Second, amount."""
        self._sum = 0

    def add(self, amount: int, now: float) -> None:
        second = int(now)
        if self._cells and self._cells[-1][0] == second:
            self._cells[-1][1] += amount
        else:
            self._forget(now)
            self._cells.append([second, amount])
        self._sum += amount

    def used(self, now: float) -> int:
        self._forget(now)
        return self._sum

    def wait(self, now: float, most: int) -> float:
        """Seconds until at most so much is used, if nothing is added."""
        left = self.used(now)
        for second, amount in self._cells:
            if left <= most:
                break
            left -= amount
            over = second + SECONDS + 1
            if left <= most:
                return over - now
        return 0.0

    def _forget(self, now: float) -> None:
        while self._cells and self._cells[0][0] + SECONDS + 1 <= now:
            self._sum -= self._cells.popleft()[1]
