"""A cluster of three nodes on this machine, in a process of its own: it takes orders on stdin, one
a line, and answers each with a line of JSON."""

import json
import sys
import time
from typing import Any

import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.config import AutoscalingConfig

import pagoda.ray
from pagoda.ray.app import deployment

_STORE_BYTES = 80 << 20
_MARK = "ANSWER "


def replicas() -> list[str]:
    named = ray.util.list_named_actors(all_namespaces=True)
    return sorted(each["name"] for each in named if each["name"].startswith("SERVE_REPLICA::"))


def deploy(flags: dict[str, Any], options: dict[str, Any]) -> None:
    """Returns once it runs, or raises why it does not."""
    pagoda.ray.build_app(flags)
    if scaling := options.pop("autoscaling_config", None):
        options["autoscaling_config"] = AutoscalingConfig(**scaling)
    options = {"max_ongoing_requests": 64, "health_check_period_s": 1} | options
    own = deployment.options(**options)
    serve.run(own.bind(flags), name="pagoda", route_prefix="/")


def run_app(flags: dict[str, Any]) -> list[dict[str, float]]:
    """As `deploy`, with what Pagoda asks Ray for; gives the bundles of placement groups."""
    serve.run(pagoda.ray.build_app(flags), name="pagoda", route_prefix="/")
    groups = ray.util.placement_group_table().values()
    return [g["bundles"][i] for g in groups if g["state"] == "CREATED" for i in g["bundles"]]


def kill(name: str) -> None:
    ray.kill(ray.get_actor(name, namespace="serve"))


def state() -> dict[str, Any]:
    deployment = serve.status().applications["pagoda"].deployments["pagoda"]
    return {"status": str(deployment.status.value), "replicas": deployment.replica_states}


def free_cpus() -> float:
    return float(ray.available_resources().get("CPU", 0))


ORDERS = {each.__name__: each for each in (replicas, deploy, run_app, kill, state, free_cpus)}


def main() -> None:
    port = int(sys.argv[1])
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1,
            "object_store_memory": _STORE_BYTES,
            "include_dashboard": True,
        },
    )
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES)
    ray.init(address=cluster.address, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    _answer({"address": cluster.address, "dashboard": cluster.head_node.webui_url})
    try:
        for line in sys.stdin:
            name, arguments = json.loads(line)
            try:
                _answer({"value": ORDERS[name](*arguments)})
            except Exception as error:  # noqa: BLE001 - the test is told
                _answer({"error": f"{type(error).__name__}: {error}"})
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()
        time.sleep(0.1)


def _answer(value: dict[str, Any]) -> None:
    print(_MARK + json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
