"""How ranks are started, and what is known of the started ones. `Ranks` uses it."""

import contextlib
import shutil
import subprocess
import sys
from typing import Protocol

import msgspec

from pagoda.base.facts import DeviceFacts
from pagoda.base.machine import oom_kills
from pagoda.config.engine import EngineConfig
from pagoda.engine.processes.child import exit_cause, private_folder
from pagoda.engine.ranks.link import FolderLeader, LeaderEnd, RankLaunch
from pagoda.planner.parallel import machine_part


class StartedRank(Protocol):
    """A rank's process, on whatever machine. Any thread may ask it."""

    def poll(self) -> int | None:
        """None while it runs, as far as is known; then its exit status, or the negative number of
        the signal that ended it. 1 says that it had a reason to give, which comes over the link."""

    def cause(self) -> str:
        """Why it ended, in a sentence."""

    def kill(self) -> None:
        """End it at once, or have it ended. Harmless when repeated."""

    def wait(self) -> None:
        """Behind `kill`: until it is gone, or for a bounded time."""


class RankStarter(Protocol):
    """Starts all ranks of one engine but rank 0."""

    @property
    def link(self) -> LeaderEnd:
        """Rank 0's line to them, which `close` closes."""

    @property
    def num_beside(self) -> int:
        """Ranks that share rank 0's machine, rank 0 among them."""

    @property
    def num_devices(self) -> int:
        """GPUs that rank 0's process has to see for ranks of its machine, its own among them."""

    def part(self, config: EngineConfig, facts: DeviceFacts) -> tuple[EngineConfig, DeviceFacts]:
        """What a rank on a CPU may count on, of the facts of a whole machine."""

    def start(self, launch: RankLaunch) -> StartedRank:
        """Start the rank that this is for."""

    def serves(self) -> None:
        """The engine takes requests from now on."""

    def close(self) -> None:
        """All ranks have ended. Harmless when repeated."""


class EqualParts:
    """Ranks that share a machine have equal parts of it."""

    num_beside: int

    @property
    def num_devices(self) -> int:
        return self.num_beside

    def part(self, config: EngineConfig, facts: DeviceFacts) -> tuple[EngineConfig, DeviceFacts]:
        return machine_part(config, facts, self.num_beside)


class LocalStarter(EqualParts):
    """Starts all of them beside rank 0, as processes of its own."""

    def __init__(self, size: int, module: str = "pagoda.engine.ranks.main"):
        """`size`: of the whole group. `module` is what runs in them."""
        self.num_beside = size
        self.folder = private_folder()
        self.link: LeaderEnd = FolderLeader(self.folder, size)
        self._module = module

    def start(self, launch: RankLaunch) -> "LocalRank":
        return LocalRank(launch, self._module)

    def serves(self) -> None:
        """Nobody else need know."""

    def close(self) -> None:
        self.link.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class LocalRank:
    """A process of this machine. The end of its standard input tells it to leave."""

    def __init__(self, launch: RankLaunch, module: str = "pagoda.engine.ranks.main"):
        self._rank = launch.rank
        self._oom_kills = oom_kills()
        # -P: a file named torch.py in the working folder must not be imported.
        command = [sys.executable, "-P", "-m", module]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert self._process.stdin is not None
        # A process that is already dead says so through its exit status.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(launch) + b"\n")
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def cause(self) -> str:
        return exit_cause(self.poll(), f"The process of rank {self._rank}", self._oom_kills)

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> None:
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
