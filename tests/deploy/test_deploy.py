"""What `deploy/` tells Docker, systemd and Kubernetes is what `pagoda serve` takes and answers."""

import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from starlette.testclient import TestClient

from pagoda.cli.main import parse_command
from pagoda.config.compat import answers
from pagoda.config.flags import engine_config, from_namespace
from pagoda.config.server import ServerConfig
from pagoda.engine.served.fleet import Fleet
from pagoda.server.app import create_app

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
COMPOSE = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
OVERLAYS = ("base", "gpu", "gpus")
STOPPING_SECONDS = 10
"""What the server may take beside the time of running requests, to end its engines and replies."""


def instruction(name):
    """The text of the Dockerfile's last instruction of that name."""
    return re.findall(rf"^{name}\s+(.*)$", DOCKERFILE, re.MULTILINE)[-1]


def unit():
    """The unit's settings by their names; of repeated ones the last."""
    lines = (DEPLOY / "systemd" / "pagoda.service").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")


def unit_command():
    lines = (DEPLOY / "systemd" / "pagoda.env").read_text().splitlines()
    values = dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")
    (flags,) = shlex.split(values["PAGODA_FLAGS"])
    words = []
    for word in unit()["ExecStart"].split():
        words += shlex.split(flags) if word == "$PAGODA_FLAGS" else [word]
    return words


@cache
def rendered(overlay):
    """Its manifests by their kinds. Overlays take kustomize, which kubectl has."""
    folder = DEPLOY / "kubernetes" / overlay
    if shutil.which("kubectl"):
        done = subprocess.run(
            ["kubectl", "kustomize", folder], capture_output=True, text=True, check=True
        )
        documents = list(yaml.safe_load_all(done.stdout))
    elif overlay == "base":
        names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
        documents = [yaml.safe_load((folder / name).read_text()) for name in names]
    else:
        pytest.skip("kubectl, which renders overlays, is not installed")
    return {document["kind"]: document for document in documents}


def pod(overlay):
    return rendered(overlay)["Deployment"]["spec"]["template"]["spec"]


def container(overlay):
    (found,) = pod(overlay)["containers"]
    return found


def image_command(words):
    return json.loads(instruction("ENTRYPOINT")) + list(words)


def configs(words):
    """What the command line says, as `pagoda serve` reads it."""
    while Path(words[0]).name != "pagoda":
        words = words[1:]
    assert words[1] == "serve"
    _, args = parse_command("serve", words[2:])
    assert answers(args) == []
    assert args.more_models == []
    return engine_config(args), from_namespace(ServerConfig, args)


COMMANDS = {
    "image": lambda: image_command(json.loads(instruction("CMD"))),
    "systemd": unit_command,
    **{
        f"compose {name}": lambda service=service: image_command(service["command"])
        for name, service in COMPOSE["services"].items()
    },
    **{
        f"kubernetes {overlay}": lambda overlay=overlay: image_command(container(overlay)["args"])
        for overlay in OVERLAYS
    },
}


@pytest.mark.parametrize("place", COMMANDS)
def test_serve_takes_each_command_line(place) -> None:
    engine, server = configs(COMMANDS[place]())
    assert engine.model.model == "smollm2"
    assert server.port == 8000
    assert server.host == ("127.0.0.1" if place == "systemd" else "0.0.0.0")


@pytest.fixture(scope="module")
def api():
    """The pod's server while it starts, with a key, asked by address as a kubelet asks."""
    _, server = configs(COMMANDS["kubernetes base"]())
    app = create_app(Fleet(), replace(server, api_key=("secret",)))
    return TestClient(app, base_url=f"http://10.1.2.3:{server.port}")


def test_probes_are_routes_that_need_no_key(api) -> None:
    found = container("base")
    paths = {name: found[name]["httpGet"]["path"] for name in found if name.endswith("Probe")}
    assert len(paths) == 3
    # While a model loads a pod is alive, and not ready.
    statuses = {name: api.get(path).status_code for name, path in paths.items()}
    assert statuses == {"startupProbe": 503, "readinessProbe": 503, "livenessProbe": 200}
    (check,) = re.findall(r"http://127\.0\.0\.1:8000(/[\w/]+)'", instruction("HEALTHCHECK"))
    assert api.get(check).status_code == 503
    notes = rendered("base")["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert api.get(notes["prometheus.io/path"]).status_code == 200
    assert api.get("/v1/models").status_code == 401


def test_ports_agree() -> None:
    port = configs(COMMANDS["image"]())[1].port
    assert int(instruction("EXPOSE")) == port
    for service in COMPOSE["services"].values():
        # Published on this machine alone: who wants more says so.
        assert service["ports"] == [f"127.0.0.1:8000:{port}"]
    (opened,) = container("base")["ports"]
    assert opened["containerPort"] == port
    manifests = rendered("base")
    (served,) = manifests["Service"]["spec"]["ports"]
    assert served["targetPort"] == opened["name"]
    template = manifests["Deployment"]["spec"]["template"]["metadata"]
    assert template["annotations"]["prometheus.io/port"] == str(port)
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container("base")[name]["httpGet"]["port"] == opened["name"]


@pytest.mark.parametrize("place", [place for place in COMMANDS if place != "image"])
def test_who_stops_it_waits_for_running_requests(place) -> None:
    kind, _, name = place.partition(" ")
    if kind == "systemd":
        patience = int(unit()["TimeoutStopSec"])
        assert unit()["KillMode"] == "mixed"
    elif kind == "compose":
        patience = int(COMPOSE["services"][name]["stop_grace_period"].removesuffix("s"))
    else:
        command, seconds = container(name)["lifecycle"]["preStop"]["exec"]["command"]
        assert command == "sleep"
        patience = pod(name)["terminationGracePeriodSeconds"] - int(seconds)
    drain = configs(COMMANDS[place]())[1].shutdown_timeout
    assert drain > 0
    assert patience >= drain + STOPPING_SECONDS


def test_compose_builds_the_image() -> None:
    folder = DEPLOY / "docker"
    arguments = set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))
    for name, service in COMPOSE["services"].items():
        assert service["profiles"] == [name]
        build = service["build"]
        context = (folder / build["context"]).resolve()
        assert context == ROOT
        assert (context / build["dockerfile"]).read_text().startswith("# Built from")
        assert set(build.get("args", ())) <= arguments
        (volume,) = service["volumes"]
        source, _, target = volume.partition(":")
        assert source in COMPOSE["volumes"]
        assert target == instruction("VOLUME")


def test_compose_config() -> None:
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker compose is not installed")
    file = DEPLOY / "docker" / "compose.yaml"
    command = ["docker", "compose", "-f", file, "--profile", "*", "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PAGODA_API_KEY": "key"})
    assert (done.returncode, done.stderr) == (0, "")


def test_the_build_gets_what_it_copies() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    kept = {line[1:] for line in lines if line.startswith("!")}
    assert [name for name in kept if not (ROOT / name).exists()] == []
    assert kept >= {"pyproject.toml", "CMakeLists.txt", "constraints.txt", "README.md", "LICENSE"}
    assert kept >= {"src", "agent/src", "agent/pyproject.toml", "agent/README.md"}


@pytest.mark.parametrize("gpu", [False, True])
def test_systemd_knows_the_unit(tmp_path, gpu) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    # Programs that are not on this machine would be faults of the unit.
    text = (DEPLOY / "systemd" / "pagoda.service").read_text()
    copy = tmp_path / "pagoda.service"
    copy.write_text(text.replace("/opt/pagoda/bin/pagoda", shutil.which("true")))
    if gpu:
        extra = (DEPLOY / "systemd" / "gpu.conf").read_text()
        (tmp_path / "pagoda.service.d").mkdir()
        (tmp_path / "pagoda.service.d" / "gpu.conf").write_text(
            extra.replace("/usr/bin/nvidia-modprobe", shutil.which("true"))
        )
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_knows_the_manifests(overlay) -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    for manifest in rendered(overlay).values():
        schemas.validate(manifest, schemas.latest_version(), strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_manifests_fit_together(overlay) -> None:
    manifests = rendered(overlay)
    spec = manifests["Deployment"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert labels
    # An empty selector would be all pods of the namespace.
    assert spec["selector"]["matchLabels"] == labels
    assert manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert manifests["Service"]["spec"]["selector"] == labels
    mounts = {mount["name"]: mount["mountPath"] for mount in container(overlay)["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod(overlay)["volumes"]}
    assert mounts["cache"] == instruction("VOLUME")
    security = pod(overlay)["securityContext"]
    user = f"{security['runAsUser']}:{security['runAsGroup']}"
    assert user == instruction("USER")


@pytest.mark.parametrize(("overlay", "gpus"), [("gpu", 1), ("gpus", 2)])
def test_as_many_gpus_as_ranks(overlay, gpus) -> None:
    engine, _ = configs(COMMANDS[f"kubernetes {overlay}"]())
    assert engine.parallel.tensor_parallel_size == gpus
    assert container(overlay)["resources"]["limits"]["nvidia.com/gpu"] == str(gpus)
    assert container(overlay)["image"] == COMPOSE["services"]["gpu"]["image"]


def group():
    """One model over several nodes: pods with the API, and pods without."""
    return yaml.safe_load((DEPLOY / "kubernetes/nodes/leaderworkerset.yaml").read_text())


# What leaderworkerset.x-k8s.io/v1 says of these fields (lws, config/crd/bases).
LEADER_WORKER_SET = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "leaderworkerset.x-k8s.io/v1"},
        "kind": {"const": "LeaderWorkerSet"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {
            "type": "object",
            "required": ["leaderWorkerTemplate"],
            "additionalProperties": False,
            "properties": {
                "replicas": {"type": "integer"},
                "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
                "leaderWorkerTemplate": {
                    "type": "object",
                    "required": ["workerTemplate"],
                    "additionalProperties": False,
                    "properties": {
                        "size": {"type": "integer"},
                        "restartPolicy": {
                            "enum": [
                                "Default", "RecreateGroupOnPodRestart",
                                "RecreateGroupAfterStart", "None",
                            ]
                        },
                        "leaderTemplate": {"$ref": "#/$defs/pod"},
                        "workerTemplate": {"$ref": "#/$defs/pod"},
                    },
                },
            },
        },
    },
    "$defs": {
        "pod": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"metadata": {"type": "object"}, "spec": {"type": "object"}},
        }
    },
}  # fmt: skip


def test_nodes_of_a_model_agree() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    manifest = group()
    jsonschema.validate(manifest, LEADER_WORKER_SET)
    template = manifest["spec"]["leaderWorkerTemplate"]
    variables = {"LWS_GROUP_SIZE": str(template["size"]), "LWS_LEADER_ADDRESS": "10.0.0.7"}
    found = []
    for number, kind in enumerate(("leaderTemplate", "workerTemplate")):
        pod = template[kind]["spec"]
        (box,) = pod["containers"]
        values = {**variables, "LWS_WORKER_INDEX": str(number)}
        words = [
            re.sub(r"\$\((\w+)\)", lambda name, values=values: values[name[1]], word)
            for word in box["args"]
        ]
        found.append(configs(image_command(words)))
        mounts = {mount["name"]: mount["mountPath"] for mount in box["volumeMounts"]}
        assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
        assert mounts["cache"] == instruction("VOLUME")
        assert box["resources"]["limits"]["nvidia.com/gpu"] == "1"
        # Other machines are let in by this alone.
        assert "PAGODA_NODES_SECRET" in [variable["name"] for variable in box["env"]]
    (leader, server), (worker, _) = found
    assert leader == replace(worker, nodes=leader.nodes)
    assert leader.nodes == replace(worker.nodes, node_rank=0, headless=False)
    assert (worker.nodes.node_rank, worker.nodes.headless) == (1, True)
    assert leader.parallel.num_ranks == leader.nodes.nnodes
    box = template["leaderTemplate"]["spec"]["containers"][0]
    patience = template["leaderTemplate"]["spec"]["terminationGracePeriodSeconds"]
    slept = int(box["lifecycle"]["preStop"]["exec"]["command"][1])
    assert patience - slept >= server.shutdown_timeout + STOPPING_SECONDS
    service = yaml.safe_load((DEPLOY / "kubernetes" / "nodes" / "service.yaml").read_text())
    assert service["spec"]["selector"] == template["leaderTemplate"]["metadata"]["labels"]
    assert service["spec"]["ports"][0]["targetPort"] == box["ports"][0]["name"]


@pytest.mark.parametrize("kind", ["leaderTemplate", "workerTemplate"])
def test_kubernetes_knows_the_pods_of_nodes(kind) -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    spec = group()["spec"]["leaderWorkerTemplate"][kind]["spec"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pagoda"}, "spec": spec}
    schemas.validate(pod, schemas.latest_version(), strict=True)
