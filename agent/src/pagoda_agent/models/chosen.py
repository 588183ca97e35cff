"""The model that the settings mean, by its name or as the only one that its server has."""

from collections.abc import Callable
from typing import NamedTuple

from pagoda_agent.base.errors import ModelError
from pagoda_agent.models import faults
from pagoda_agent.models.dialogue import ChatModel
from pagoda_agent.models.endpoint import Endpoint
from pagoda_agent.models.profiles import Profile
from pagoda_agent.models.registry import make_model
from pagoda_agent.settings import Settings

MakeModel = Callable[[str, Endpoint], ChatModel]
"""Makes a model from an API's name and the endpoint where it is spoken."""


class Chosen(NamedTuple):
    name: str
    profile: Profile
    model: ChatModel


async def chosen_model(settings: Settings, make: MakeModel = make_model) -> Chosen:
    """Without a name in the settings: the first that the server lists and that may see.

    Raises ConfigError for settings that do not fit, ModelError where no name can be had.
    """
    name = settings.model or await _first_that_sees(settings, make)
    profile = settings.model_profile(name)
    return Chosen(name, profile, make(profile.api, settings.endpoint(name)))


async def _first_that_sees(settings: Settings, make: MakeModel) -> str:
    endpoint = settings.endpoint("")
    # The API that the name would tell is not known yet; without a setting it is OpenAI's.
    model = make(settings.model_profile("").api, endpoint)
    try:
        served = await model.served()
    finally:
        await model.close()
    if not served:
        raise ModelError(
            f"{endpoint.place} serves no model. Load one there, or name one in the settings or "
            "with --model."
        )
    name = next((listed.name for listed in served if listed.sees), None)
    if name is None:
        raise faults.blind(served[0].name, f"{endpoint.place} serves it for text only.")
    return name
