"""One model over several machines, by vLLM's flags."""

import math
from dataclasses import dataclass

from pagoda.base import env
from pagoda.base.errors import ConfigError
from pagoda.config.kv_transfer import is_local
from pagoda.config.option import Options, option

LEAST_SECRET = 16
"""Characters of a secret, at least."""


@dataclass(frozen=True)
class NodesConfig(Options):
    """Several machines for one model."""

    nnodes: int = option(
        1, "Machines that share the model's ranks equally, in their order.", bounds=(1, math.inf)
    )
    node_rank: int = option(
        0, "Which of them this one is; 0 has the API, others need --headless.", bounds=(0, math.inf)
    )
    master_addr: str = option(
        "127.0.0.1",
        "Address of the machine with --node-rank 0, by which the others reach it; other than on "
        "one machine all need the same PAGODA_NODES_SECRET.",
    )
    master_port: int = option(29501, "Port on which it waits for the others.", bounds=(1, 65535))
    headless: bool = option(False, "Run this machine's ranks for another one, without an API.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.node_rank >= self.nnodes:
            raise ConfigError(
                f"--node-rank {self.node_rank} of --nnodes {self.nnodes}: it counts from 0 to "
                f"{self.nnodes - 1}."
            )
        if self.headless and self.nnodes == 1:
            raise ConfigError("--headless runs ranks for another machine; give --nnodes as well.")
        if self.headless and self.node_rank == 0:
            raise ConfigError(
                "--headless is for the other machines; the one with --node-rank 0 has the API."
            )
        if self.node_rank > 0 and not self.headless:
            raise ConfigError(
                f"--node-rank {self.node_rank} has no API, which is on the machine with "
                "--node-rank 0; add --headless."
            )

    def check(self, num_ranks: int, num_engines: int) -> None:
        """ConfigError where so many ranks of each engine cannot be dealt out to the machines."""
        if self.nnodes == 1:
            return
        if num_ranks % self.nnodes:
            raise ConfigError(
                f"--tensor-parallel-size times --pipeline-parallel-size is {num_ranks}, which "
                f"cannot be dealt out equally to --nnodes {self.nnodes}."
            )
        if num_engines > 1:
            raise ConfigError(
                "--nnodes spreads one engine over machines, and --data-parallel-size starts "
                "several on one; leave one of them out."
            )

    def share(self, count: int) -> int:
        """How many of so many ranks one machine has."""
        return count // self.nnodes

    def secret(self) -> bytes:
        """What all machines prove to each other; empty on one machine. ConfigError where other
        machines may connect and there is none, or it is short."""
        secret = str(env.get("PAGODA_NODES_SECRET") or "").encode()
        if not secret and not is_local(self.master_addr):
            raise ConfigError(
                f"--master-addr {self.master_addr} can be reached from other machines. Set "
                "PAGODA_NODES_SECRET to the same value on all of them (openssl rand -hex 32)."
            )
        if secret and len(secret) < LEAST_SECRET:
            raise ConfigError(
                f"PAGODA_NODES_SECRET has {len(secret)} characters; it needs {LEAST_SECRET} at "
                "least (openssl rand -hex 32)."
            )
        return secret
