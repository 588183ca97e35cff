"""The process of one rank: `python -m pagoda.engine.ranks.main`, told what to do on its stdin."""

import gc
import os
import shutil
import signal
import sys
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from pagoda.arch.spec import ModelSpec
from pagoda.arch.stage import stage_of
from pagoda.base import env
from pagoda.base.errors import CapacityError, PagodaError
from pagoda.base.log import get_logger, setup_logging
from pagoda.base.process import go_on_without_parent
from pagoda.config.kv_transfer import is_local
from pagoda.core.kvcache.spec import GroupSpec, kv_groups
from pagoda.core.ranks import RankBlocks, RankCall, RankCapture, RankStep, RankTiles
from pagoda.engine.core import describe
from pagoda.engine.processes.main import leave
from pagoda.engine.processes.watchdog import Watchdog
from pagoda.engine.ranks.link import (
    FolderEnd,
    FolderPlace,
    Place,
    RankDevice,
    RankDied,
    RankDone,
    RankEnd,
    RankLaunch,
    RankMeasure,
    RankMeasured,
    RankMeet,
    RankPool,
    RankReady,
    RankSetup,
    RankUp,
)
from pagoda.engine.ranks.tcp import TcpEnd
from pagoda.engine.start.libraries import import_torch
from pagoda.engine.start.measured import Room, room_of, step_of
from pagoda.engine.start.model_files import checkpoint_of, spec_of
from pagoda.engine.start.phases import is_out_of_memory
from pagoda.planner.captured import CapturedSize
from pagoda.planner.memory.assumed import dummy_of
from pagoda.planner.parallel import rank_spec
from pagoda.text.media.base import Processor
from pagoda.text.media.select import processors_for
from pagoda.weights.files import open_model

if TYPE_CHECKING:
    from pagoda.models.base import Model
    from pagoda.runtime.adapters import ResidentAdapters
    from pagoda.runtime.device import Device
    from pagoda.runtime.meeting import Meeting
    from pagoda.runtime.rank_group import RankGroup
    from pagoda.runtime.ranks import FollowingRunner

log = get_logger("engine.rank")

_PATIENCE_SECONDS = 10.0


def main() -> NoReturn:
    """The whole process."""
    go_on_without_parent()
    # Rank 0 says when to go, by its end of our stdin if by nothing else: an interrupt of the whole
    # process group, or of a service, lets it finish its requests first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        launch = msgspec.json.decode(sys.stdin.buffer.readline(), type=RankLaunch)
    except msgspec.MsgspecError:
        sys.exit("This is a rank's process of Pagoda; `pagoda serve` starts it.")
    follower = threading.Thread(
        target=_follow_leader, args=(launch.place,), name="leader", daemon=True
    )
    follower.start()
    follow(launch, follower)
    leave(1)


def follow(launch: RankLaunch, follower: threading.Thread | None = None) -> None:
    """Be that rank until it fails, and has told rank 0 why; the end of rank 0 ends this process.
    `follower` is a thread that sees to it as well."""
    setup_logging(launch.log_level, launch.log_format)
    end: RankEnd
    if isinstance(launch.place, FolderPlace):
        end = FolderEnd(launch.place, launch.rank)
    else:
        end = TcpEnd(launch.place, launch.rank, on_lost=partial(leave, 1))
    try:
        _serve(launch, end)
    except Exception as error:
        lost = type(error).__name__ == "PeerLostError"  # its module brings torch
        if not (lost or isinstance(error, PagodaError)):
            log.exception("Rank %d failed.", launch.rank)
        out_of_memory = isinstance(error, CapacityError) or is_out_of_memory(error)
        end.send(RankDied(launch.rank, describe(error), out_of_memory, lost))
        end.close()
        if lost and follower is not None:
            # Rank 0 ends us; or it is the one that is gone, and then we clean up behind it.
            follower.join(_PATIENCE_SECONDS)


def _serve(launch: RankLaunch, end: RankEnd) -> None:
    watchdog = Watchdog()
    watchdog.beat("import torch")
    env.set_default("OMP_WAIT_POLICY", "PASSIVE")
    if is_local(end.address):
        env.set_default("NCCL_SOCKET_IFNAME", "lo")
    import_torch()
    from pagoda.runtime.device import make_device
    from pagoda.runtime.rank_group import RankGroup

    watchdog.beat(None)
    chosen = end.receive()
    assert isinstance(chosen, RankDevice)
    device = make_device(chosen.name, chosen.first_gpu + launch.device_index)
    facts = device.facts()
    end.send(RankUp(launch.rank, facts.total_memory, facts.free_memory))
    watchdog.beat(None)
    setup = end.receive()
    assert isinstance(setup, RankSetup)
    parallel = setup.config.parallel
    group = RankGroup(launch.rank, parallel.tensor_parallel_size, parallel.pipeline_parallel_size)
    loaded = _load(launch, setup, device, group, watchdog)
    end.send(RankReady(launch.rank))
    watchdog.beat(None)
    meet = end.receive()
    assert isinstance(meet, RankMeet)
    group.connect(device.torch_device, _meeting(launch, meet, group.num_ranks, end.address))
    order = end.receive()
    if isinstance(order, RankMeasure):
        watchdog.beat("profile")
        room = _room(loaded, launch.config.cache.gpu_memory_utilization, order.computes)
        end.send(RankMeasured(launch.rank, *room))
        watchdog.beat(None)
        order = end.receive()
    assert isinstance(order, RankPool)
    watchdog.beat("reserve KV cache")
    runner = _make_runner(loaded, order)
    end.send(RankDone(launch.rank))
    watchdog.beat(None)
    gc.collect()
    gc.freeze()
    while True:
        order = end.receive()
        watchdog.beat(type(order).__name__)
        match order:
            case RankStep():
                runner.follow(order)
            case RankCapture(requests, tokens, prompts):
                runner.capture(CapturedSize(requests, tokens, prompts))
            case RankBlocks():
                runner.exchange(order)
            case RankTiles(rows):
                runner.take_tiles(rows)
            case RankCall():
                end.send(RankDone(launch.rank, _called(runner, order)))
        watchdog.beat(None)


def _meeting(launch: RankLaunch, meet: RankMeet, size: int, address: str) -> "Meeting":
    from pagoda.runtime.meeting import meet_in, meet_with

    place = launch.place
    if isinstance(place, FolderPlace):
        return meet_in(Path(place.folder), size)
    return meet_with(place.host, meet.store_port, address, meet.num_beside)


def _called(runner: "FollowingRunner", call: RankCall) -> str:
    """Why it failed, if it did: no rank waits for this one in it, so it may be tried again."""
    try:
        match call.method:
            case "load_adapter":
                runner.load_adapter(call.slot, call.identity, call.parts)
            case "sleep":
                runner.sleep()
            case "wake_up":
                runner.wake_up()
    except PagodaError as error:
        return describe(error)
    except Exception as error:
        log.exception("%s failed.", call.method)
        return describe(error)
    return ""


@dataclass(frozen=True)
class _Loaded:
    setup: RankSetup
    device: "Device"
    group: "RankGroup"
    spec: ModelSpec
    """The whole model's."""
    model: "Model"
    processors: dict[str, Processor]
    adapters: "ResidentAdapters | None"

    @property
    def groups(self) -> list[GroupSpec]:
        """What this rank keeps of tokens."""
        config = self.setup.config
        stage = stage_of(self.spec, self.setup.cuts, self.group.stage)
        own = rank_spec(stage, config.parallel.tensor_parallel_size)
        return kv_groups(own, self.setup.attention.layout, config.cache.kv_cache_dtype)


def _load(
    launch: RankLaunch,
    setup: RankSetup,
    device: "Device",
    group: "RankGroup",
    watchdog: Watchdog,
) -> _Loaded:
    """This rank's share of the weights."""
    from pagoda.models.kv_scales import load_kv_scales
    from pagoda.models.loader import build_model
    from pagoda.runtime.adapters import make_adapters

    config = setup.config
    watchdog.beat("load weights")
    device.set_threads(config.device.threads, packed=setup.packed)
    files = open_model(Path(launch.model_path), launch.config.model.mmproj)
    spec = spec_of(files, launch.config.model)
    dummy = dummy_of(spec, files.config) if config.model.dummy else None
    weights = None if dummy is not None else checkpoint_of(files, spec, config.model)
    model = build_model(
        stage_of(spec, setup.cuts, group.stage),
        dummy or weights,
        dtype=device.dtype(config.model.dtype),
        device=device.place_of(setup.in_host),
        parallel=group.parallel,
        progress=lambda done, total: watchdog.beat("load weights"),
        packed=setup.packed,
        attention=setup.attention,
    )
    if config.cache.kv_cache_dtype == "fp8_e4m3" and weights is not None:
        load_kv_scales(model, weights)
    adapters = make_adapters(model, config.adapters, of_gguf=files.kind == "gguf")
    return _Loaded(setup, device, group, spec, model, processors_for(files), adapters)


def _room(loaded: _Loaded, share: float, computes: bool) -> Room:
    """What is left of this share of the device, by a step that all ranks compute."""
    from pagoda.runtime.profile import largest_step

    step = None
    if computes:
        work = partial(largest_step, loaded.model)
        step = step_of(work, loaded.groups, loaded.device, loaded.setup.config)
    return room_of(loaded.device, share, step)


def _make_runner(loaded: _Loaded, pool: RankPool) -> "FollowingRunner":
    """As start-up makes rank 0's, without what only that one does."""
    from pagoda.runtime.ranks import FollowingRunner
    from pagoda.runtime.stages import StageFollower

    setup, config = loaded.setup, pool.config
    kind = FollowingRunner if loaded.group.num_stages == 1 else StageFollower
    return kind(
        loaded.model,
        loaded.spec,
        loaded.groups,
        num_slabs=pool.num_slabs,
        num_host_slabs=pool.num_host_slabs,
        device=loaded.device,
        max_num_reqs=config.scheduler.max_num_seqs,
        max_num_samples=config.max_num_samples,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        max_model_len=config.model.max_model_len,
        seed=config.model.seed,
        processors=loaded.processors,
        eager=config.device.enforce_eager,
        captured_bytes=setup.captured_bytes,
        captured_sizes=setup.captured_sizes,
        adapters=loaded.adapters,
        group=loaded.group,
    )


def _follow_leader(place: Place) -> None:
    """Leave when whoever started us does, however it ended: its end of our stdin closes with it."""
    while os.read(0, 4096):
        pass
    if isinstance(place, FolderPlace):
        shutil.rmtree(place.folder, ignore_errors=True)
    leave(1)


if __name__ == "__main__":
    main()
