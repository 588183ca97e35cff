"""Typed reads of config.json and of GGUF metadata; a wrong value is an error that names it."""

from collections.abc import Mapping, Sequence
from typing import Any

from pagoda.base.errors import CheckpointError, UnsupportedModelError

# Far above any known model (Llama 3.1 405B has 126 layers of 16384, 256k-token vocabularies
# exist) and low enough that sizes computed from them stay within 64 bits.
MAX_LAYERS = 2048
MAX_WIDTH = 1 << 20
MAX_HEADS = 1 << 12
MAX_VOCAB = 1 << 24
MAX_CONTEXT = 1 << 31

_REQUIRED = object()


class Reader:
    """Reads keys of a mapping, each with `prefix` before it; `source` names it in errors.

    Without a default a key is required; a null counts as missing.
    """

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = ""):
        self._values = values
        self._source = source
        self._prefix = prefix

    def has(self, name: str) -> bool:
        return self._values.get(self._prefix + name) is not None

    def raw(self, name: str) -> Any:
        return self._values.get(self._prefix + name)

    def error(self, name: str, problem: str) -> CheckpointError:
        return CheckpointError(
            f"{self._source}: {self._prefix + name} {problem}. "
            "The file is damaged or not meant for this program; fetch it again."
        )

    def integer(
        self, name: str, maximum: int, default: Any = _REQUIRED, *, minimum: int = 1
    ) -> int:
        value = self._get(name, default)
        return self._checked_integer(name, value, minimum, maximum)

    def integers(
        self, name: str, count: int, maximum: int, default: Any = _REQUIRED
    ) -> tuple[int, ...]:
        """One value for each of `count` layers; a single number stands for all of them."""
        value = self._get(name, default)
        if _is_list(value):
            if len(value) != count:
                raise self.error(name, f"lists {len(value)} values for {count} layers")
            return tuple(self._checked_integer(name, item, 1, maximum) for item in value)
        return (self._checked_integer(name, value, 1, maximum),) * count

    def number(
        self, name: str, default: Any = _REQUIRED, *, above: float = 0.0, below: float = 1e12
    ) -> float:
        """A number between `above` and `below`, both finite and excluded."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, f"must be a number, not {value!r}")
        if not above < value < below:
            raise self.error(name, f"must be between {above:g} and {below:g}, not {value!r}")
        return float(value)

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """So many positive numbers."""
        values = self._get(name, _REQUIRED)
        if not _is_list(values) or len(values) != count:
            raise self.error(name, f"must list {count} numbers")
        items = Reader(
            {f"{name}[{i}]": value for i, value in enumerate(values)}, self._source, self._prefix
        )
        return tuple(items.number(f"{name}[{i}]") for i in range(count))

    def flag(self, name: str, default: Any = _REQUIRED) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false, not {value!r}")
        return value

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.error(name, f"must be a text, not {value!r}")
        return value

    def texts(self, name: str, default: Any = _REQUIRED) -> tuple[str, ...]:
        value = self._get(name, default)
        if not _is_list(value) or not all(isinstance(item, str) for item in value):
            raise self.error(name, f"must be a list of texts, not {value!r}")
        return tuple(value)

    def listed(self, name: str) -> Sequence[Any]:
        """A list of anything, to be checked by who asks; empty where it is missing or null."""
        value = self._get(name, ())
        if not _is_list(value):
            raise self.error(name, f"must be a list, not {str(value)[:80]!r}")
        items: Sequence[Any] = value
        return items

    def section(self, name: str) -> "Reader | None":
        """A nested object, or None where it is missing or null."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, f"must be an object, not {value!r}")
        return Reader(value, f"{self._source}: {self._prefix}{name}")

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One id, a list of ids, or nothing."""
        value = self.raw(name)
        items = value if _is_list(value) else [] if value is None else [value]
        return tuple(self._checked_integer(name, item, 0, MAX_VOCAB) for item in items)

    def _get(self, name: str, default: Any) -> Any:
        value = self._values.get(self._prefix + name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise self.error(name, "is missing")
        return default

    def _checked_integer(self, name: str, value: Any, minimum: int, maximum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, f"must be a whole number, not {value!r}")
        if not minimum <= value <= maximum:
            raise self.error(name, f"must be between {minimum} and {maximum}, not {value}")
        return value


def config_reader(config: Mapping[str, Any]) -> Reader:
    """A reader of config.json; the language model's part of a nested one wins."""
    nested = config.get("text_config")
    merged = {**config, **nested} if isinstance(nested, Mapping) else config
    return Reader(merged, "config.json")


def checkpoint_dtype(reader: Reader, default: str = "bfloat16") -> str:
    """The dtype in config.json; UnsupportedModelError for one that no layer has."""
    name = reader.text("dtype", reader.raw("torch_dtype") or default)
    if name not in ("bfloat16", "float16", "float32"):
        raise UnsupportedModelError(
            f"config.json gives the dtype {name!r}; known are bfloat16, float16 and float32."
        )
    return name


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
