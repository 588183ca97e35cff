"""Which slot each resident adapter has."""

from collections.abc import Sequence
from pathlib import Path

import torch

from pagoda.base.errors import RequestError
from pagoda.models.adapters import ModelAdapters
from pagoda.models.base import Model
from pagoda.planner.resolved import ResolvedAdapters
from pagoda.weights.adapters import open_adapter

NO_SLOT = -1


def make_adapters(
    model: Model, room: ResolvedAdapters, *, of_gguf: bool
) -> "ResidentAdapters | None":
    """Empty slots beside the model's layers; None where none were asked for."""
    if not room.slots:
        return None
    return ResidentAdapters(ModelAdapters(model, room, of_gguf=of_gguf))


class ResidentAdapters:
    """Adapters of a model by what they are. Who tells it to load chooses the slots."""

    def __init__(self, adapters: ModelAdapters):
        self._adapters = adapters
        self._slots: dict[str, int] = {}

    @torch.inference_mode()
    def load(self, slot: int, identity: str, parts: Sequence[tuple[str, float]]) -> None:
        """Fill a slot with the sum of adapters, paths and what each is multiplied with; what it
        held is gone. Raises as `ModelAdapters.load`, which leaves the slot empty."""
        self._slots = {known: place for known, place in self._slots.items() if place != slot}
        opened = [(open_adapter(Path(path)), scale) for path, scale in parts]
        self._adapters.load(slot, opened)
        self._slots[identity] = slot

    def slot_of(self, identity: str | None) -> int:
        """-1 for the model alone; RequestError for an adapter that is not resident."""
        if identity is None:
            return NO_SLOT
        if identity not in self._slots:
            raise RequestError("The adapter of this request is not loaded; load it again.", "model")
        return self._slots[identity]
