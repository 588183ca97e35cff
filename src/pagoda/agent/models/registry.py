"""APIs by name."""

from pagoda.agent.dialogue import ChatModel
from pagoda.agent.models.endpoint import Endpoint
from pagoda.base.errors import ConfigError
from pagoda.base.registry import Registry

APIS = Registry(
    "API",
    {
        "openai": "pagoda.agent.models.openai_chat:OpenAIChat",
        "responses": "pagoda.agent.models.openai_responses:OpenAIResponses",
        "anthropic": "pagoda.agent.models.anthropic:AnthropicMessages",
        "dashscope": "pagoda.agent.models.dashscope:DashScope",
    },
)


def make_model(api: str, endpoint: Endpoint) -> ChatModel:
    """The model behind `endpoint`. Raises ConfigError for an API that is not known."""
    if api not in APIS:
        raise ConfigError(f"There is no model API {api!r}; {APIS.nearest(api)}.")
    model: ChatModel = APIS.get(api)(endpoint)
    return model
