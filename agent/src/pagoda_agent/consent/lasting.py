"""Consent that lasts: what is like an action that a person allowed passes without another
question."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagoda_agent.consent.line import Line
from pagoda_agent.consent.readonly import REACHES
from pagoda_agent.consent.reasons import Reason
from pagoda_agent.consent.shell import Word, commands

# With any options and words, they run nothing, and remove nothing but empty folders and what they
# overwrite. Whatever is not known to be so is left out: sudo, env and xargs, and also tar, sort,
# find and git, which have options that name a program to run.
BY_NAME = frozenset({
    "basename", "cat", "cd", "cmp", "cp", "cut", "df", "diff", "dirname", "du", "echo", "false",
    "file", "free", "grep", "groups", "head", "id", "ln", "ls", "lsblk", "lscpu", "md5sum",
    "mkdir", "mv", "nproc", "ping", "printenv", "ps", "pwd", "readlink", "realpath", "rmdir",
    "sha256sum", "stat", "tail", "touch", "tr", "true", "uname", "uniq", "uptime", "wc", "which",
    "whoami",
})  # fmt: skip
"""Programs whose name is enough to know what a line may do at worst."""


@dataclass(frozen=True)
class Act:
    """A kind of act beside lines that may be allowed for a whole task."""

    code: str
    """The reason that says what it covers."""
    what: str = ""
    """The model's own words of a click, the host of an address; empty where any."""

    @property
    def reason(self) -> Reason:
        return Reason(self.code, {"what": self.what} if self.what else {})


@dataclass(frozen=True)
class Lasting:
    """What a person allowed beyond one action."""

    programs: frozenset[str] = frozenset()
    """Programs of BY_NAME. Lines that are known and run nothing else pass."""
    any_line: bool = False
    """All lines pass, until the task pauses: after it they may go to another program."""
    acts: frozenset[Act] = frozenset()

    @property
    def reason(self) -> Reason:
        """What it would let pass, for the person who is asked."""
        for act in self.acts:
            return act.reason
        if self.any_line:
            return Reason("lastingAnyLine")
        return Reason("lastingPrograms", {"programs": ", ".join(sorted(self.programs))})

    def covers(self, lines: Sequence[Line]) -> bool:
        return self.any_line or all(_names(line) <= self.programs for line in lines)

    def joined(self, other: "Lasting") -> "Lasting":
        any_line = self.any_line or other.any_line
        return Lasting(self.programs | other.programs, any_line, self.acts | other.acts)

    def after_pause(self) -> "Lasting":
        return replace(self, any_line=False)


def offered(lines: Sequence[Line]) -> Lasting | None:
    """What a person who is asked about these lines may allow for longer. None for lines of programs
    that cannot be judged by their name."""
    if any(not line.known or commands(line.text) is None for line in lines):
        return Lasting(any_line=True)
    names = frozenset[str]().union(*map(_names, lines))
    return Lasting(names) if names <= BY_NAME else None


def _names(line: Line) -> frozenset[str]:
    """The programs that it runs, without a name where that does not say enough."""
    found = commands(line.text) if line.known else None
    return frozenset({""}) if found is None else frozenset(map(_name, found))


def _name(command: Sequence[Word]) -> str:
    name, *words = command
    reaches = any(REACHES.search(word.text) for word in words)
    return name.text if name.plain and not reaches else ""
