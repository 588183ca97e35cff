"""The system prompt as the settings page shows it."""

import asyncio
import contextlib
from typing import Any

from PIL import Image

from pagoda_agent.base.errors import AgentError
from pagoda_agent.dialects.rules import BUILT_IN, FORMAT
from pagoda_agent.models.chosen import chosen_model
from pagoda_agent.models.profiles import Profile, dialect_of
from pagoda_agent.screen.frame import Frame
from pagoda_agent.task.operator import Operator

# A server that does not answer must not keep the settings closed.
_ASKING_SECONDS = 2.0
_SCREEN = (1280, 720)


async def shown_prompt(operator: Operator) -> dict[str, Any]:
    """`format` takes the place of `placeholder` in `built_in`, for the model and the screen that
    a task would have now."""
    profile = await _profile(operator)
    size = await _size(operator, profile)
    text = dialect_of(profile).instructions(size, operator.driver.capabilities)
    return {"built_in": BUILT_IN, "placeholder": FORMAT, "format": text, "profile": profile.name}


async def _profile(operator: Operator) -> Profile:
    settings = operator.settings
    if not settings.model and not settings.profile:
        with contextlib.suppress(AgentError, TimeoutError):
            async with asyncio.timeout(_ASKING_SECONDS):
                chosen = await chosen_model(settings, operator.make_model)
                await chosen.model.close()
                return chosen.profile
    return settings.model_profile(settings.model)


async def _size(operator: Operator, profile: Profile) -> tuple[int, int]:
    try:
        frame = await operator.look()
    except AgentError:  # a computer that shows nothing now
        return profile.picture_size(Frame(Image.new("RGB", _SCREEN), 0))
    return profile.picture_size(frame)
