"""--kv-events-config takes vLLM's keys, and says what is wrong with others."""

import json

import pytest

from pagoda.base.errors import ConfigError
from pagoda.cli.main import parse_command
from pagoda.config.engine import CacheConfig
from pagoda.config.flags import engine_config
from pagoda.config.kv_events import KVEventsConfig, kv_events

VLLM = {
    "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:5557",
    "replay_endpoint": "tcp://*:5558", "buffer_steps": 100, "hwm": 7, "max_queue_size": 9,
    "topic": "kv@pod@model",
}  # fmt: skip


def given(*words: str) -> KVEventsConfig:
    return engine_config(parse_command("serve", ["x.gguf", *words])[1]).cache.kv_events


def test_the_flag_is_vllms():
    assert given("--kv-events-config", json.dumps(VLLM)) == KVEventsConfig(**VLLM)
    assert given("--kv-events-config.topic", "a", "--kv-events-config.hwm", "5") == KVEventsConfig(
        topic="a", hwm=5
    )
    assert not given().publishes


@pytest.mark.parametrize(
    ("config", "publishes"),
    [
        ({"enable_kv_cache_events": True}, True),
        ({"enable_kv_cache_events": True, "publisher": None, "replay_endpoint": None}, True),
        ({"enable_kv_cache_events": True, "publisher": "null"}, False),
        ({"publisher": "zmq"}, False),
    ],
)
def test_when_events_are_published(config, publishes):
    assert kv_events(config).publishes is publishes


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"endpiont": "tcp://*:1"}, "'endpiont' is not known; known are .*endpoint"),
        ({"endpoint": "5557"}, "endpoint is '5557'; it takes an address such as tcp"),
        ({"hwm": -1}, "hwm is -1; it takes a whole number"),
        ({"hwm": None}, "hwm is None"),
        ({"buffer_steps": 2**31}, "a whole number from 0 on, below 2.31"),
        ({"buffer_steps": True}, "buffer_steps is True"),
        ({"enable_kv_cache_events": "yes"}, "takes true or false"),
        ({"publisher": "nats"}, "one of zmq, null"),
        ({**VLLM, "replay_endpoint": VLLM["endpoint"]}, "both tcp.*a port of its own"),
    ],
)
def test_what_is_wrong_is_named(config, said):
    with pytest.raises(ConfigError, match=f"--kv-events-config: .*{said}"):
        CacheConfig(kv_events_config=config)


def test_each_of_several_engines_has_ports_of_its_own():
    asked = kv_events({"endpoint": "tcp://*:5557", "replay_endpoint": "ipc:///run/again"})
    assert asked.of_replica(0) == asked
    second = asked.of_replica(1)
    assert (second.endpoint, second.replay_endpoint) == ("tcp://*:5558", "ipc:///run/again_dp1")
    assert kv_events({"endpoint": "tcp://[::]:9"}).of_replica(2).endpoint == "tcp://[::]:11"
    assert kv_events({"endpoint": "tcp://*:*"}).of_replica(2).endpoint == "tcp://*:*"
    assert kv_events({}).of_replica(3).replay_endpoint is None
