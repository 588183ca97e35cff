"""Typed reads of config.json's `quantization_config`; a wrong value is an error that names it."""

from collections.abc import Mapping
from typing import Any

from pagoda.base.errors import CheckpointError, UnsupportedModelError


class Settings:
    """One object of the config; a null counts as missing."""

    def __init__(self, values: object, where: str = "quantization_config"):
        if not isinstance(values, Mapping):
            raise CheckpointError(f"config.json: {where} must be an object, not {values!r}.")
        self.values: Mapping[str, Any] = values
        self.where = where

    def error(self, name: str, problem: str) -> CheckpointError:
        return CheckpointError(f"config.json: {self.where}.{name} {problem}; fetch the file again.")

    def unsupported(self, what: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"The weights are quantized with {what}, which is not supported yet; take another "
            "quantization of the model, or a GGUF."
        )

    def integer(self, name: str, default: int) -> int:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, f"must be a whole number, not {value!r}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false, not {value!r}")
        return value

    def text(self, name: str, default: str = "") -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.error(name, f"must be a text, not {value!r}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(name, f"must be a list of texts, not {value!r}")
        return tuple(value)

    def pair(self, name: str) -> tuple[int, int] | None:
        """Rows and columns of a block, or None."""
        value = self._get(name, None)
        if value is None:
            return None
        if (
            not isinstance(value, list)
            or len(value) != 2
            or not all(type(item) is int and item > 0 for item in value)
        ):
            raise self.error(name, f"must be two whole numbers, not {value!r}")
        return value[0], value[1]

    def section(self, name: str) -> "Settings | None":
        value = self._get(name, None)
        return None if value is None else Settings(value, f"{self.where}.{name}")

    def sections(self, name: str) -> "dict[str, Settings]":
        """An object of objects."""
        found = self.section(name)
        if found is None:
            return {}
        return {key: Settings(value, f"{found.where}.{key}") for key, value in found.values.items()}

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        return default if value is None else value
