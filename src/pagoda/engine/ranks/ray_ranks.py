"""Ranks as actors of a Ray cluster, for `--distributed-executor-backend ray`.

Only this module of the engine imports Ray.
"""

import contextlib
import logging
import re
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import msgspec

from pagoda.base import env
from pagoda.base.errors import ConfigError, MissingLibraryError
from pagoda.base.facts import DeviceFacts
from pagoda.base.log import get_logger
from pagoda.config.engine import EngineConfig
from pagoda.engine.core import describe
from pagoda.engine.ranks.link import RankLaunch
from pagoda.engine.ranks.placement import Node, Wanted, blocks_of, split_stages
from pagoda.engine.ranks.ray_actors import PagodaRank, Reservation
from pagoda.engine.ranks.tcp import TcpLeader
from pagoda.version import __version__

try:
    import ray
    from ray import exceptions as ray_errors
    from ray.util.placement_group import (
        PlacementGroup,
        placement_group,
        placement_group_table,
        remove_placement_group,
    )
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    raise MissingLibraryError(
        "--distributed-executor-backend ray needs Ray, on each node: pip install 'pagoda-llm[ray]'"
    ) from error

log = get_logger(__name__)

# A node may be about to join, or one that is gone still be counted.
_GRACE_SECONDS = 15.0
# So long may others hold what would suffice.
_PATIENCE_SECONDS = 300.0
_TELL_SECONDS = 10.0
_LOOK_SECONDS = 0.25
_END_SECONDS = 5.0
# As exit status of a rank of which Ray says why it is gone.
_GONE = 2
_NODE_LABEL = "ray.io/node-id"


class RayStarter:
    """Starts all ranks but rank 0, which is in this process, in bundles of one placement group. Its
    first bundle is rank 0's, on this node. The group is the engine's own, or, behind Ray Serve,
    that of the replica whose process started this one."""

    def __init__(self, config: EngineConfig):
        """Waits for the group. ConfigError says what the cluster lacks."""
        _connect()
        parallel = config.parallel
        self._wanted = wanted_of(config, nodes())
        self._reservation: Any = None
        self._own_group = not env.get("PAGODA_RAY_GROUP")
        self._group = _new_group(self._wanted) if self._own_group else _given_group()
        try:
            places = _ready(self._group, self._wanted, own=self._own_group)
            self._slots = self._wanted.slots(self._group.bundle_specs, places)
            if len(self._slots) < parallel.num_ranks:
                raise ConfigError(
                    f"{parallel.sizes} makes {parallel.num_ranks} ranks, and this replica's "
                    f"bundles {self._group.bundle_specs} have room for {len(self._slots)}; leave "
                    "placement_group_bundles to pagoda.ray."
                )
            if self._own_group:
                self._take_place()
            self._places = [places[slot] for slot in self._slots]
            self._address = {node.name: node.address for node in nodes()}
            self._tell()
            here = len(set(self._places)) == 1
            own = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
            address = "127.0.0.1" if here else own
            self.link = TcpLeader(address, 0, parallel.num_ranks, secrets.token_bytes(32))
        except BaseException:
            self._release()
            raise
        self.num_beside = blocks_of(self._places)
        self.num_devices = 1  # Ray shows each process its own

    def part(self, config: EngineConfig, facts: DeviceFacts) -> tuple[EngineConfig, DeviceFacts]:
        """The threads that Ray has given a rank, and a part of its node's memory."""
        most = max(map(self._places.count, self._places))
        device = replace(config.device, threads=self._wanted.each)
        return replace(config, device=device), replace(
            facts,
            free_memory=facts.free_memory // most,
            total_memory=facts.total_memory // most,
            num_threads=self._wanted.each,
            nodes=(),
        )

    def start(self, launch: RankLaunch) -> "RayRank":
        each = {f"num_{self._wanted.resource.lower()}s": self._wanted.each}
        actor: Any = ray.remote(PagodaRank).options(
            **{"num_cpus": 0, "num_gpus": 0, **each},
            max_restarts=0,
            max_task_retries=0,
            runtime_env={"env_vars": _for_ranks()},
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=self._slots[launch.rank]
            ),
        ).remote()  # fmt: skip
        raw = msgspec.json.encode(msgspec.structs.replace(launch, device_index=0))
        where = self._address.get(self._places[launch.rank], "")
        return RayRank(launch.rank, where, actor, actor.follow.remote(raw, __version__))

    def serves(self) -> None:
        """Nobody else need know."""

    def close(self) -> None:
        self.link.close()
        self._release()

    def _release(self) -> None:
        if not self._own_group:
            return
        # Ray may be gone already, and then holds nothing for us.
        with contextlib.suppress(Exception):
            if self._reservation is not None:
                ray.kill(self._reservation)
            remove_placement_group(self._group)

    def _take_place(self) -> None:
        """Have this process see what Ray's workers see: the GPU of rank 0, or none."""
        if self._wanted.resource == "CPU":
            env.put("CUDA_VISIBLE_DEVICES", "")
            return
        self._reservation = ray.remote(Reservation).options(
            num_cpus=0,
            num_gpus=1,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=0
            ),
        ).remote()  # fmt: skip
        env.put("CUDA_VISIBLE_DEVICES", ray.get(self._reservation.gpus.remote()))

    def _tell(self) -> None:
        for name in dict.fromkeys(self._places):
            ranks = [str(rank) for rank, place in enumerate(self._places) if place == name]
            log.info("Node %s has rank %s.", self._address.get(name, name), ", ".join(ranks))
        split = split_stages(self._places, self._wanted.parallel)
        if split:
            log.warning(
                "Ranks that share each layer (--tensor-parallel-size) are on several nodes, and "
                "add up over the network twice in each layer. No node had room for all of them."
            )


class RayRank:
    """An actor. It ends with this process, for Ray ends actors with the driver that made them."""

    def __init__(self, rank: int, node: str, actor: Any, reply: Any):
        self._rank, self._node, self._actor = rank, node, actor
        self._ended: Future[None] = reply.future()

    def poll(self) -> int | None:
        if not self._ended.done():
            return None
        return 1 if self._ended.exception() is None else _GONE

    def cause(self) -> str:
        what = f"rank {self._rank} on node {self._node}"
        error = self._ended.exception() if self._ended.done() else None
        if error is None:
            return f"The actor of {what} ended; its log says why."
        return _cause(what, error)

    def kill(self) -> None:
        with contextlib.suppress(Exception):  # Ray is gone, and the actor with it
            ray.kill(self._actor)

    def wait(self) -> None:
        with contextlib.suppress(Exception):
            self._ended.exception(_END_SECONDS)


def wanted_of(config: EngineConfig, cluster: Sequence[Node]) -> Wanted:
    """What its ranks ask Ray for: a GPU each where the cluster has any, else CPUs."""
    device, threads = config.device.device, config.device.threads
    has_gpus = any(node.resources.get("GPU") for node in cluster)
    if device == "cpu" or (device == "auto" and not has_gpus):
        each = threads // config.parallel.num_ranks if isinstance(threads, int) else 1
        return Wanted(config.parallel, "CPU", max(1, each))
    return Wanted(config.parallel, "GPU")


def nodes() -> list[Node]:
    """Those of the cluster that are alive."""
    return [
        Node(each["NodeID"], each["NodeManagerAddress"], each["Resources"])
        for each in ray.nodes()  # type: ignore[no-untyped-call]
        if each["Alive"]
    ]


def _connect() -> None:
    """To the cluster of RAY_ADDRESS, or the one that runs here; else start one of this machine."""
    if ray.is_initialized():
        return
    given = env.get("RAY_ADDRESS")
    if given and "://" in given:
        raise ConfigError(
            f"RAY_ADDRESS is {given}; rank 0 runs in this process, so it has to be on a node of "
            "the cluster: start Pagoda there, with RAY_ADDRESS=auto."
        )
    options: dict[str, Any] = {"logging_level": logging.WARNING}
    try:
        ray.init("auto", **options)
    except ConnectionError as error:
        if given and given != "auto":
            raise ConfigError(
                f"No Ray cluster answers at {given} (RAY_ADDRESS), or this machine is none of its "
                f"nodes: {describe(error)}"
            ) from error
        ray.init("local", include_dashboard=False, **options)
        log.info(
            "No Ray cluster runs on this machine, and RAY_ADDRESS names none: started one that has "
            "this machine alone and ends with the engine."
        )
    else:
        address = ray.get_runtime_context().gcs_address
        log.info("Connected to the Ray cluster at %s: %d nodes.", address, len(nodes()))


def _new_group(wanted: Wanted) -> PlacementGroup:
    home = ray.get_runtime_context().get_node_id()
    bundles = wanted.bundles(nodes(), home)
    selectors: list[dict[str, str]] = [{_NODE_LABEL: home}, *({} for _ in bundles[1:])]
    group: PlacementGroup = placement_group(
        bundles, strategy="PACK", bundle_label_selector=selectors
    )
    return group


def _given_group() -> PlacementGroup:
    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(env.get("PAGODA_RAY_GROUP"))))


def _ready(group: PlacementGroup, wanted: Wanted, *, own: bool) -> list[str]:
    """The nodes of its bundles, once all are there; ConfigError says what is missing."""
    home = ray.get_runtime_context().get_node_id() if own else None
    begun = told = time.monotonic()
    while True:
        table = placement_group_table(group)
        if table["state"] == "CREATED":
            places = table["bundles_to_node_id"]
            return [places[index] for index in range(len(places))]
        if table["state"] == "REMOVED":
            raise ConfigError("Ray removed the placement group of this engine.")
        now = time.monotonic()
        missing = wanted.missing(nodes(), home)
        if missing and now - begun > _GRACE_SECONDS:
            raise ConfigError(missing)
        resources = ray.available_resources()  # type: ignore[no-untyped-call]
        free = resources.get(wanted.resource, 0)
        needed = wanted.each * wanted.parallel.num_ranks
        waits = f"{needed} {wanted.resource}s of Ray; {free:g} are free"
        if now - begun > _PATIENCE_SECONDS:
            raise ConfigError(
                f"Others held what this engine needs for {_PATIENCE_SECONDS:g} s: {waits}. "
                "`ray status` shows who."
            )
        if now - told > _TELL_SECONDS:
            told = now
            log.info("Waiting for %s. %s", waits, missing)
        time.sleep(_LOOK_SECONDS)


def _for_ranks() -> dict[str, str]:
    """Variables that must say the same in all ranks."""
    names = ("PAGODA_SYMMETRIC_MEMORY", "PAGODA_CPU_ISA", "PAGODA_DEBUG")
    found = {name: env.of_user(name) for name in names}
    nccl = {f"NCCL_{name}": value for name, value in env.with_prefix("NCCL_").items()}
    return nccl | {name: value for name, value in found.items() if value is not None}


def _cause(what: str, error: BaseException) -> str:
    """In a sentence, of what Ray says in a page."""
    said = str(error)
    if isinstance(error, ray_errors.RayTaskError):
        return f"The actor of {what} failed: {describe(error.cause)}"
    if isinstance(error, ray_errors.OutOfMemoryError):
        return f"Ray ended the process of {what}, for its node's memory was nearly full."
    if isinstance(error, ray_errors.ActorUnavailableError):
        return f"Ray reaches the process of {what} no more: it, its node or the network is gone."
    if "ray.kill" in said:
        return f"The actor of {what} was ended by ray.kill."
    if "node has died" in said or "node was terminated" in said:
        return f"The node of {what} left the Ray cluster, and the rank with it."
    if "worker process has died" in said:
        pid = re.search(r"pid: (\d+)", said)
        process = f"process {pid[1]}" if pid else "process"
        return (
            f"The {process} of {what} was killed or crashed; Ray saw it end, but not why. dmesg "
            "there says whether memory ran out, and Ray's logs there have its last words."
        )
    last = said.strip().rpartition("\n")[2]
    return f"The actor of {what} is gone: {last}"
