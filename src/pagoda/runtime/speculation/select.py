"""Which drafter goes with what was loaded."""

import torch

from pagoda.arch.spec import ModelSpec
from pagoda.models.base import DraftHead
from pagoda.runtime.cache_memory import CacheMemory
from pagoda.runtime.device import Device
from pagoda.runtime.model import Model
from pagoda.runtime.speculation.drafter import Drafter, HeadDrafter
from pagoda.runtime.speculation.model_drafter import ModelDrafter
from pagoda.runtime.states import RequestStates
from pagoda.runtime.steps.program import StepLimits


@torch.inference_mode()
def make_drafter(
    head: DraftHead | None,
    model: Model | None,
    spec: ModelSpec,
    cache: CacheMemory,
    states: RequestStates,
    device: Device,
    limits: StepLimits,
    *,
    eager: bool,
) -> Drafter | None:
    """What drafts for the model that `spec` describes: its head, or another model; None without
    either. The steps of a draft model are within `limits`; `eager` runs them op by op."""
    if head is not None:
        return HeadDrafter(head, cache, states, device.torch_device)
    if model is None or spec.draft_model is None:
        return None
    return ModelDrafter(model, spec.draft_model, cache, states, device, limits, eager=eager)
