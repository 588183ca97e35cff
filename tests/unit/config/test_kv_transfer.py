"""--kv-transfer-config takes vLLM's keys, and says what is wrong with others."""

import json

import pytest

from pagoda.base.errors import ConfigError
from pagoda.cli.main import parse_command
from pagoda.config.engine import CacheConfig
from pagoda.config.flags import engine_config
from pagoda.config.kv_transfer import KVTransferConfig, kv_transfer

PAGODA = {"kv_connector": "pagoda", "kv_role": "kv_both"}


def given(command: str, *words: str) -> KVTransferConfig:
    return engine_config(parse_command(command, ["x.gguf", *words])[1]).cache.kv_transfer


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_the_flag_is_vllms(command):
    asked = {
        **PAGODA, "kv_ip": "10.0.0.7", "kv_port": 14600, "engine_id": "e", "kv_rank": 0,
        "kv_parallel_size": 1, "kv_buffer_size": 1e9, "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"hold_seconds": 5, "secret_file": "/s"},
    }  # fmt: skip
    config = given(command, "--kv-transfer-config", json.dumps(asked))
    assert (config.kv_ip, config.kv_port) == ("10.0.0.7", 14600)
    assert (config.hold_seconds, config.secret_file) == (5.0, "/s")
    assert config.is_on and config.produces and config.consumes
    assert not given(command).is_on


@pytest.mark.parametrize(
    ("role", "parts"), [("kv_producer", (True, False)), ("kv_consumer", (False, True))]
)
def test_roles(role, parts):
    config = kv_transfer({**PAGODA, "kv_role": role})
    assert (config.produces, config.consumes) == parts
    assert (config.kv_ip, config.kv_port, config.hold_seconds) == ("127.0.0.1", 14579, 60.0)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"kv_connector": "NixlConnector", "kv_role": "kv_both"}, "'NixlConnector'; .* 'pagoda'"),
        ({"kv_role": "kv_both"}, "kv_connector is None"),
        ({"kv_connector": "pagoda"}, "kv_role is None; it is one of kv_producer"),
        ({**PAGODA, "kv_role": "prefill"}, "kv_role is 'prefill'"),
        ({**PAGODA, "kv_prot": 1}, "'kv_prot' is not known; known are .*kv_port"),
        ({**PAGODA, "kv_port": 70000}, "kv_port is 70000; it takes a whole number"),
        ({**PAGODA, "kv_port": True}, "kv_port is True"),
        ({**PAGODA, "kv_ip": "0.0.0.0"}, "the one address by which the other engine"),
        ({**PAGODA, "kv_connector_extra_config": {"backends": ["UCX"]}}, "'backends' of"),
        ({**PAGODA, "kv_connector_extra_config": {"hold_seconds": 0}}, "a number above 0"),
        ({**PAGODA, "kv_connector_extra_config": {"secret_file": 1}}, "it takes a path"),
        ({**PAGODA, "kv_connector_extra_config": {"warm_from": "h:1"}}, "it takes a list such as"),
        ({**PAGODA, "kv_connector_extra_config": {"warm_from": ["host"]}}, "a host and a port"),
        ({**PAGODA, "kv_connector_extra_config": {"warm_from": ["h:70000"]}}, "a host and a port"),
        ({**PAGODA, "kv_connector_extra_config": {"warm_from": [":80"]}}, "a host and a port"),
        (
            {
                **PAGODA,
                "kv_role": "kv_producer",
                "kv_connector_extra_config": {"warm_from": ["h:1"]},
            },
            "warm_from is for a kv_consumer or kv_both",
        ),
        ({**PAGODA, "kv_connector_extra_config": []}, "it takes a JSON object"),
    ],
)
def test_what_is_wrong_is_named(config, said):
    with pytest.raises(ConfigError, match=f"--kv-transfer-config: .*{said}"):
        CacheConfig(kv_transfer_config=config)


def test_whom_a_new_engine_asks():
    extra = {"warm_from": ["10.0.0.7:14579", "[::1]:80"]}
    config = kv_transfer({**PAGODA, "kv_connector_extra_config": extra})
    assert config.warm_from == [("10.0.0.7", 14579), ("::1", 80)]
    assert config.siblings_of(1, 3) == [("127.0.0.1", 14579), ("127.0.0.1", 14581)]
    assert config.siblings_of(0, 0) == [], "the others do not serve yet"
    for change in ({"kv_port": 0}, {"kv_role": "kv_consumer"}):
        assert kv_transfer({**PAGODA, **change}).siblings_of(1, 3) == []


def test_it_needs_a_prefix_cache():
    with pytest.raises(ConfigError, match="leave out --no-enable-prefix-caching"):
        CacheConfig(kv_transfer_config=PAGODA, enable_prefix_caching=False)
