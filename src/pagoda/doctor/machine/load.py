"""How much of the CPU other programs use meanwhile, by the kernel's counters (proc(5), stat)."""

import time
from dataclasses import dataclass
from pathlib import Path

from pagoda.base.words import say
from pagoda.doctor.findings import Finding

_STAT = Path("/proc/stat")
# In the first line: user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
_FIELDS, _IDLE = 8, (3, 4)
# Less is what a desktop does at rest.
_BUSY = 0.15


@dataclass(frozen=True)
class Ticks:
    total: float
    busy: float
    """Seconds of all processors together since the machine started."""
    own: float
    """Seconds of processors that this process used."""


def ticks(tick: float) -> Ticks | None:
    """`tick`: seconds of one (os.sysconf). None where there is no such file."""
    try:
        words = _STAT.read_text().partition("\n")[0].split()[1 : _FIELDS + 1]
    except OSError:
        return None
    counts = [int(word) * tick for word in words]
    idle = sum(counts[index] for index in _IDLE if index < len(counts))
    return Ticks(sum(counts), sum(counts) - idle, time.process_time())


def others_share(before: Ticks | None, after: Ticks | None) -> float:
    """The share of all processors that others used in between; 0 where that is not known."""
    if before is None or after is None or after.total <= before.total:
        return 0.0
    others = (after.busy - before.busy) - (after.own - before.own)
    return min(1.0, max(0.0, others / (after.total - before.total)))


def load_findings(share: float) -> tuple[Finding, ...]:
    if share < _BUSY:
        return ()
    return (
        Finding(
            "speed", "WARN",
            say(
                "other programs used {share:.0%} of the CPU while it was measured, so the speeds "
                "may be off either way",
                share=share,
            ),
            say("Ask again when they rest."),
        ),
    )  # fmt: skip
