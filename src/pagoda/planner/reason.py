"""Why a value was chosen."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reason:
    field: str
    value: Any
    why: str
