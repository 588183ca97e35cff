"""The actors that run on the nodes of a Ray cluster. Ray imports them there by name."""

from pathlib import Path

import msgspec

from pagoda.base import env
from pagoda.base.errors import ConfigError, SourceError
from pagoda.version import __version__


class PagodaRank:
    """The process of one rank."""

    def follow(self, raw: bytes, version: str) -> None:
        """Be the rank that a `RankLaunch` says, until rank 0 is gone. It returns when the rank has
        told rank 0 why it ends."""
        if version != __version__:
            raise ConfigError(
                f"this node has Pagoda {__version__}, and the engine {version}; install the same "
                "on all nodes."
            )
        from pagoda.engine.ranks.link import RankLaunch
        from pagoda.engine.ranks.main import follow

        launch = msgspec.json.decode(raw, type=RankLaunch)
        if not Path(launch.model_path).exists():
            raise SourceError(
                f"{launch.model_path} is not on this node. All nodes need the model in the same "
                "place: in a folder that they share, or fetched on each (`pagoda pull`)."
            )
        follow(launch)


class Reservation:
    """Holds rank 0's GPU, whose process Ray does not know."""

    def gpus(self) -> str:
        """As CUDA_VISIBLE_DEVICES has it."""
        return str(env.get("CUDA_VISIBLE_DEVICES"))
