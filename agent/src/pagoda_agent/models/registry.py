"""APIs by name."""

from pkgutil import resolve_name

from pagoda_agent.base.errors import ConfigError
from pagoda_agent.base.near import nearest_of
from pagoda_agent.models.dialogue import ChatModel
from pagoda_agent.models.endpoint import Endpoint

APIS = {
    "openai": "pagoda_agent.models.openai_chat:OpenAIChat",
    "responses": "pagoda_agent.models.openai_responses:OpenAIResponses",
    "anthropic": "pagoda_agent.models.anthropic:AnthropicMessages",
    "dashscope": "pagoda_agent.models.dashscope:DashScope",
}


def make_model(api: str, endpoint: Endpoint) -> ChatModel:
    """The model behind `endpoint`. Raises ConfigError for an API that is not known."""
    if api not in APIS:
        raise ConfigError(f"There is no model API {api!r}; {nearest_of(api, APIS)}.")
    model: ChatModel = resolve_name(APIS[api])(endpoint)
    return model
