"""Several devices for one model, and what runs on them."""

import math
from dataclasses import dataclass

from pagoda.base.errors import ConfigError
from pagoda.config.option import Options, option

_AT_LEAST_1 = (1, math.inf)


@dataclass(frozen=True)
class ParallelConfig(Options):
    """Several devices for one model."""

    tensor_parallel_size: int = option(
        1, "Devices (on a CPU processes) that each layer is split over.",
        aliases=("-tp", "--tp"), bounds=_AT_LEAST_1,
    )  # fmt: skip
    pipeline_parallel_size: int = option(
        1, "Stages with some of the layers each, on devices (on a CPU processes) of their own.",
        aliases=("-pp", "--pp"), bounds=_AT_LEAST_1,
    )  # fmt: skip
    data_parallel_size: int = option(
        1, "Engines with the whole model, each a process; requests are dealt out among them.",
        aliases=("-dp",), bounds=_AT_LEAST_1,
    )  # fmt: skip
    distributed_executor_backend: str = option(
        "mp", "What runs the ranks of a model that is split: `mp`, processes of this machine, or "
        "`ray`, actors of a Ray cluster.", choices=("mp", "ray"),
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distributed_executor_backend == "ray" and self.data_parallel_size > 1:
            raise ConfigError(
                "--data-parallel-size starts engines on this machine; with "
                "--distributed-executor-backend ray leave it out, and have Ray Serve run replicas."
            )

    @property
    def num_ranks(self) -> int:
        """Devices of one engine: GPUs, or processes."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def sizes(self) -> str:
        """The flags that the number of ranks comes from."""
        sizes = {
            "--tensor-parallel-size": self.tensor_parallel_size,
            "--pipeline-parallel-size": self.pipeline_parallel_size,
        }
        return " times ".join(f"{flag} {size}" for flag, size in sizes.items() if size > 1)

    @property
    def num_devices(self) -> int:
        """Those of all engines."""
        return self.num_ranks * self.data_parallel_size
