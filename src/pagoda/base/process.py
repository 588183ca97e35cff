"""What a process asks of the system about its own life."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def signal_when_parent_ends(number: signal.Signals) -> None:
    """Have the system send this process a signal when its parent ends. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def go_on_without_parent() -> None:
    """Wake up when the parent ends, where this process is stopped (SIGSTOP): it can then see that
    the parent is gone, and leave."""
    signal_when_parent_ends(signal.SIGCONT)
