"""Launches a model's engine, or its engines if it has replicas."""

from typing import Any

import msgspec

from pagoda.base.machine import cpu_facts
from pagoda.config.engine import EngineConfig
from pagoda.engine.processes.client import EngineClient
from pagoda.engine.processes.transport import MemoryRoom
from pagoda.engine.replicas.group import Replicas
from pagoda.engine.replicas.replica import Replica

Engine = EngineClient | Replicas
"""What requests are sent to."""


def launch(config: EngineConfig, *, room: MemoryRoom | None = None, **options: Any) -> Engine:
    """Start the process, or one for each replica, and return at once. Takes what
    `EngineClient.launch` takes."""
    size = config.parallel.data_parallel_size
    if size == 1:
        return EngineClient.launch(config, room=room, **options)
    parts = parts_of(room or MemoryRoom(), config)
    return Replicas(config, [Replica.launch(config, room=part, **options) for part in parts])


def parts_of(room: MemoryRoom, config: EngineConfig) -> list[MemoryRoom]:
    """The room of each replica. GPUs are its own. On a CPU, each gets an equal part of the memory
    that is free before any of them starts: later, the first to load would have taken some."""
    parallel = config.parallel
    size, ranks = parallel.data_parallel_size, parallel.num_ranks
    free = max(0, cpu_facts().free_memory - room.reserved)
    part = msgspec.structs.replace(
        room,
        limit=None if room.limit is None else room.limit // size,
        cpu_part=free // (size * ranks),
    )
    return [
        msgspec.structs.replace(part, first_gpu=index * ranks, replica=index)
        for index in range(size)
    ]
