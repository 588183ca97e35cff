"""`pagoda serve` as an application of Ray Serve: each replica is a server with its own engine."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

from pagoda.base import env
from pagoda.base.errors import ConfigError, EngineDeadError
from pagoda.base.log import get_logger, setup_logging
from pagoda.cli import serve as serve_command
from pagoda.config.compat import answers
from pagoda.config.engine import EngineConfig
from pagoda.config.flags import engine_config, flag_words, from_namespace
from pagoda.config.parser import FlagParser
from pagoda.config.server import ServerConfig
from pagoda.engine.processes.client import EngineClient
from pagoda.ray.scaling import KV_USAGE, NUM_REQUESTS

try:
    import ray
    from ray import serve
except ImportError as error:
    raise ImportError("pagoda.ray needs Ray: pip install 'pagoda-llm[ray]'") from error

log = get_logger(__name__)

# Ray's default of 5 would leave a continuous batch empty. What is beyond an engine's own limit
# waits in its queue, where it is seen.
_MAX_ONGOING_REQUESTS = 256


def application(flags: Mapping[str, Any]) -> "serve.Application":
    """What `pagoda.ray.build_app` gives."""
    engine, _ = configs(flags)
    num_seqs = engine.scheduler.max_num_seqs
    options = deployment.options(
        max_ongoing_requests=max(
            _MAX_ONGOING_REQUESTS, num_seqs if isinstance(num_seqs, int) else 0
        ),
        **(_of_ranks(engine) if _on_ray(engine) else _of_one_node(engine)),
    )
    bound: serve.Application = options.bind(dict(flags))
    return bound


def configs(flags: Mapping[str, Any]) -> tuple[EngineConfig, ServerConfig]:
    """What `pagoda serve` makes of such flags, for a server behind Ray's proxies."""
    parser = _Flags()
    serve_command.add_arguments(parser)
    args = parser.parse_args(flag_words(flags))
    for line in answers(args):
        log.warning("%s", line)
    engine, server = engine_config(args), from_namespace(ServerConfig, args)
    if not engine.model.model:
        raise ConfigError("No model is named: args need `model: NAME`.")
    if engine.parallel.data_parallel_size > 1:
        raise ConfigError("Ray has the replicas: `num_replicas` of its deployments says how many.")
    return engine, server


class _Flags(FlagParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"In the args of pagoda.ray:build_app: {message}")


def _on_ray(engine: EngineConfig) -> bool:
    """Whether a replica has ranks that are Ray's actors."""
    parallel = engine.parallel
    return parallel.distributed_executor_backend == "ray" and parallel.num_ranks > 1


def _of_one_node(engine: EngineConfig) -> dict[str, Any]:
    """What a replica asks for whose ranks are processes beside it: GPUs where the cluster has
    any."""
    wanted = engine.device.device in ("auto", "cuda") and ray.is_initialized()
    resources = ray.cluster_resources() if wanted else {}  # type: ignore[no-untyped-call]
    gpus = engine.parallel.num_devices if resources.get("GPU") else 0
    return {"ray_actor_options": {"num_cpus": 1, "num_gpus": gpus}}


def _of_ranks(engine: EngineConfig) -> dict[str, Any]:
    """What a replica asks for whose ranks are actors: bundles for all of them. The first is that of
    rank 0, which is in the replica."""
    from pagoda.engine.ranks.ray_ranks import nodes, wanted_of

    cluster = nodes() if ray.is_initialized() else []
    wanted = wanted_of(engine, cluster)
    first, *others = wanted.bundles(cluster)
    own = {"num_cpus": wanted.each, "num_gpus": 0}
    if wanted.resource == "GPU":
        first["CPU"], own = 1.0, {"num_cpus": 1, "num_gpus": 1}
    return {
        "placement_group_bundles": [first, *others],
        "placement_group_strategy": "PACK",
        "ray_actor_options": own,
    }


def _lend_group(engine: EngineConfig) -> None:
    """Tell the engine's process, which Ray does not know, where its ranks shall be."""
    if not _on_ray(engine):
        return
    group = ray.util.get_current_placement_group()
    if group is None:
        raise ConfigError(
            "Ranks on Ray need the replica's placement group: leave placement_group_bundles to "
            "pagoda.ray, or give one bundle for each rank."
        )
    env.put("PAGODA_RAY_GROUP", group.id.hex())
    env.put("RAY_ADDRESS", ray.get_runtime_context().gcs_address)


class Replica:
    """A server without a port of its own, and its engine's process."""

    async def __init__(  # type: ignore[misc]  # Ray waits for it
        self, flags: dict[str, Any]
    ) -> None:
        """Returns once the model is served; raises what loading raises."""
        engine, self._config = configs(flags)
        setup_logging(self._config.log_level, self._config.log_format)
        _lend_group(engine)
        from pagoda.engine.served.entries import model_entries
        from pagoda.engine.served.fleet import Fleet

        self._fleet = Fleet(model_entries(_in_its_share(engine), (), (), {}))
        served = await self._fleet.begin(self._fleet.entries[0])
        assert isinstance(served.client, EngineClient)
        self._client = served.client

    def __serve_build_asgi_app__(self) -> Any:
        from pagoda.server.app import create_app

        return serve_command.with_page(self._config, create_app(self._fleet, self._config))

    def check_health(self) -> None:
        """Ray asks, and replaces a replica that raises: its engine was given up."""
        if self._client.state == "dead":
            raise EngineDeadError(f"The engine was given up. {self._fleet.entries[0].cause}")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What `replicas_for_load` reads."""
        from pagoda.server.engine_metrics import kv_usage

        stats = self._client.stats
        return {NUM_REQUESTS: stats.num_running + stats.num_waiting, KV_USAGE: kv_usage(stats)}

    async def __del__(self) -> None:
        await self._fleet.shutdown(self._config.shutdown_timeout)


def _in_its_share(engine: EngineConfig) -> EngineConfig:
    """With as many threads as Ray gives it CPUs, unless flags say otherwise."""
    context = ray.get_runtime_context()
    resources = context.get_assigned_resources()  # type: ignore[no-untyped-call]
    cpus = int(resources.get("CPU", 0))
    if engine.device.threads != "auto" or cpus < 1:
        return engine
    return replace(engine, device=replace(engine.device, threads=cpus))


deployment: Any = serve.deployment(name="pagoda")(serve.ingress()(Replica))
