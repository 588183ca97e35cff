"""`--kv-transfer-config`, as vLLM spells it: how KV blocks move from one engine to another."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pagoda.base.errors import ConfigError

CONNECTOR = "pagoda"
_ROLES = ("kv_producer", "kv_consumer", "kv_both")
_EVERYWHERE = ("", "*", "0.0.0.0", "::", "[::]")
# Of vLLM's fields those that say nothing to this connector.
_PASSED_OVER = (
    "engine_id", "kv_buffer_device", "kv_buffer_size", "kv_connector_module_path",
    "kv_load_failure_policy", "kv_parallel_size", "kv_rank",
)  # fmt: skip


@dataclass(frozen=True)
class KVTransferConfig:
    """The keys of the JSON, and those of its `kv_connector_extra_config`."""

    kv_connector: str | None = None
    """None: blocks do not move."""
    kv_role: str = "kv_both"
    kv_ip: str = "127.0.0.1"
    """Where a producer listens, and what it tells others to connect to."""
    kv_port: int = 14579
    """0 takes any that is free."""
    kv_connector_extra_config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_on(self) -> bool:
        return self.kv_connector is not None

    @property
    def produces(self) -> bool:
        return self.kv_role != "kv_consumer"

    @property
    def consumes(self) -> bool:
        return self.kv_role != "kv_producer"

    @property
    def hold_seconds(self) -> float:
        """So long a finished prompt's blocks are kept for whoever fetches them."""
        return float(self.kv_connector_extra_config.get("hold_seconds", 60))

    @property
    def warm_from(self) -> list[tuple[str, int]]:
        """Hosts and ports of engines from whose prefixes a new one fills its cache."""
        return [_address(each) for each in self.kv_connector_extra_config.get("warm_from", ())]

    def siblings_of(self, replica: int, count: int) -> list[tuple[str, int]]:
        """Where the others of a model's `count` engines give their blocks; nowhere that is known
        if they took any port, or give none."""
        if not self.kv_port or not self.produces:
            return []
        return [(self.kv_ip, self.kv_port + at) for at in range(count) if at != replica]

    @property
    def secret_file(self) -> str | None:
        """A file with the secret that both sides know; None: there is none, or the environment
        has it."""
        path = self.kv_connector_extra_config.get("secret_file")
        return None if path is None else str(path)


def kv_transfer(given: Mapping[str, Any]) -> KVTransferConfig:
    """ConfigError names the key that is wrong, and what it takes."""
    if not given:
        return KVTransferConfig()
    known = list(KVTransferConfig.__dataclass_fields__)
    for key in given:
        if key not in known and key not in _PASSED_OVER:
            raise _wrong(f"{key!r} is not known; known are {', '.join(known)}")
    values = {key: given[key] for key in known if given.get(key) is not None}
    if values.get("kv_connector") != CONNECTOR:
        raise _wrong(
            f"kv_connector is {given.get('kv_connector')!r}; the only one is {CONNECTOR!r}, which "
            "moves blocks between engines of Pagoda over TCP and takes requests as NixlConnector "
            "does"
        )
    if values.get("kv_role") not in _ROLES:
        raise _wrong(f"kv_role is {given.get('kv_role')!r}; it is one of {', '.join(_ROLES)}")
    _check_address(values)
    _check_extra(values.get("kv_connector_extra_config", {}))
    config = KVTransferConfig(**values)
    if config.warm_from and not config.consumes:
        raise _wrong("warm_from is for a kv_consumer or kv_both, and this is a kv_producer")
    return config


def is_local(host: str) -> bool:
    """Whether it is an address of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_address(values: Mapping[str, Any]) -> None:
    port, host = values.get("kv_port", 0), values.get("kv_ip", "127.0.0.1")
    if type(port) is not int or not 0 <= port < 2**16:
        raise _wrong(f"kv_port is {port!r}; it takes a whole number from 0 to 65535")
    if type(host) is not str or host in _EVERYWHERE:
        raise _wrong(
            f"kv_ip is {host!r}; it takes the one address by which the other engine reaches this "
            "one, such as 10.0.0.7"
        )


def _check_extra(extra: object) -> None:
    if not isinstance(extra, Mapping):
        raise _wrong(f"kv_connector_extra_config is {extra!r}; it takes a JSON object")
    for key, value in extra.items():
        if key == "hold_seconds":
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise _wrong(f"hold_seconds is {value!r}; it takes a number above 0")
        elif key == "secret_file":
            if not isinstance(value, str):
                raise _wrong(f"secret_file is {value!r}; it takes a path")
        elif key == "warm_from":
            if not isinstance(value, list):
                raise _wrong(f'warm_from is {value!r}; it takes a list such as ["10.0.0.7:14579"]')
            for each in value:
                _address(each)
        else:
            raise _wrong(
                f"{key!r} of kv_connector_extra_config is not known; known are hold_seconds, "
                "secret_file, warm_from"
            )


def _address(text: object) -> tuple[str, int]:
    host, _, port = str(text).rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
        raise _wrong(f"warm_from has {text!r}; it takes a host and a port, such as 10.0.0.7:14579")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _wrong(said: str) -> ConfigError:
    return ConfigError(f"--kv-transfer-config: {said}.")
