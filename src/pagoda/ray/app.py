"""`pagoda serve` as an application of Ray Serve: each replica is a server with its engine."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

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
        ray_actor_options={"num_cpus": 1, "num_gpus": _gpus(engine)},
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


def _gpus(engine: EngineConfig) -> int:
    """Those of one replica, in a cluster that has any."""
    wanted = engine.device.device in ("auto", "cuda") and ray.is_initialized()
    resources = ray.cluster_resources() if wanted else {}  # type: ignore[no-untyped-call]
    return engine.parallel.num_devices if resources.get("GPU") else 0


class Replica:
    """A server without a port of its own, and its engine's process."""

    async def __init__(  # type: ignore[misc]  # Ray waits for it
        self, flags: dict[str, Any]
    ) -> None:
        """Returns once the model is served; raises what loading raises."""
        engine, self._config = configs(flags)
        setup_logging(self._config.log_level, self._config.log_format)
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
