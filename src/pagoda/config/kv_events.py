"""`--kv-events-config`, as vLLM spells it: where routers hear what the prefix cache holds."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from pagoda.base.errors import ConfigError

_PUBLISHERS = ("zmq", "null")
_TRANSPORTS = ("tcp://", "ipc://", "inproc://")


@dataclass(frozen=True)
class KVEventsConfig:
    """The keys of the JSON."""

    enable_kv_cache_events: bool = False
    publisher: str = "zmq"
    """`null` publishes nothing."""
    endpoint: str = "tcp://*:5557"
    """Where the PUB socket is: bound where it has a `*` or `::`, or is ipc or inproc, else
    connected to."""
    replay_endpoint: str | None = None
    """Where the ROUTER socket is that sends batches again; None: there is none."""
    buffer_steps: int = 10_000
    """Batches that are kept for it."""
    hwm: int = 100_000
    """Batches that wait for a subscriber; one that is slower loses the next ones."""
    max_queue_size: int = 100_000
    """Batches that wait for the publisher."""
    topic: str = ""

    @property
    def publishes(self) -> bool:
        return self.enable_kv_cache_events and self.publisher != "null"

    def of_replica(self, index: int) -> "KVEventsConfig":
        """Those of one of several engines, each of which has a port of its own: `index` ports
        further on."""
        replay = self.replay_endpoint
        return replace(
            self,
            endpoint=_further(self.endpoint, index),
            replay_endpoint=None if replay is None else _further(replay, index),
        )


def kv_events(given: Mapping[str, Any]) -> KVEventsConfig:
    """ConfigError names the key that is wrong, and what it takes."""
    kinds = {field.name: field.type for field in fields(KVEventsConfig)}
    for key, value in given.items():
        if key not in kinds:
            raise _wrong(f"{key!r} is not known; known are {', '.join(kinds)}")
        if value is None and key in ("publisher", "replay_endpoint"):
            continue
        _check(key, value, kinds[key])
    read = KVEventsConfig(**{key: value for key, value in given.items() if value is not None})
    if read.publishes and read.endpoint == read.replay_endpoint:
        raise _wrong(
            f"endpoint and replay_endpoint are both {read.endpoint}; give each a port of its own"
        )
    return read


def _check(key: str, value: object, kind: object) -> None:
    if kind is bool:
        if type(value) is not bool:
            raise _wrong(f"{key} is {value!r}; it takes true or false")
    elif kind is int:
        if type(value) is not int or not 0 <= value < 2**31:
            raise _wrong(f"{key} is {value!r}; it takes a whole number from 0 on, below 2^31")
    elif type(value) is not str:
        raise _wrong(f"{key} is {value!r}; it takes a text")
    elif key.endswith("endpoint") and not value.startswith(_TRANSPORTS):
        raise _wrong(f"{key} is {value!r}; it takes an address such as tcp://*:5557")
    elif key == "publisher" and value not in _PUBLISHERS:
        raise _wrong(f"publisher is {value!r}; it is one of {', '.join(_PUBLISHERS)}")


def _further(endpoint: str, index: int) -> str:
    if not endpoint.startswith("tcp://"):
        return f"{endpoint}_dp{index}" if index else endpoint
    host, _, port = endpoint.rpartition(":")
    return f"{host}:{int(port) + index}" if port.isdigit() else endpoint


def _wrong(said: str) -> ConfigError:
    return ConfigError(f"--kv-events-config: {said}.")
