"""Ranks as threads of one process, connected over gloo as processes would be."""

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

from pagoda.layers.context import Parallel
from pagoda.runtime.meeting import meet_in
from pagoda.runtime.rank_group import RankGroup

Result = TypeVar("Result")


def on_ranks(size: int, work: Callable[[Parallel], Result]) -> list[Result]:
    """What `work` returns on each rank, in their order."""
    groups = [RankGroup(rank, size) for rank in range(size)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(size) as pool:

        def run(group: RankGroup) -> Any:
            group.connect(torch.device("cpu"), meet_in(Path(folder), size))
            try:
                return work(group.parallel)
            except BaseException:
                group._group = None  # hangs up, or the others would wait
                raise

        return list(pool.map(run, groups))
