"""APIs by name."""

from pagoda.base.errors import ConfigError
from pagoda.base.registry import Registry
from pagoda_agent.dialogue import ChatModel
from pagoda_agent.models.endpoint import Endpoint

APIS = Registry(
    "API",
    {
        "openai": "pagoda_agent.models.openai_chat:OpenAIChat",
        "responses": "pagoda_agent.models.openai_responses:OpenAIResponses",
        "anthropic": "pagoda_agent.models.anthropic:AnthropicMessages",
        "dashscope": "pagoda_agent.models.dashscope:DashScope",
    },
)


def make_model(api: str, endpoint: Endpoint) -> ChatModel:
    """The model behind `endpoint`. Raises ConfigError for an API that is not known."""
    if api not in APIS:
        raise ConfigError(f"There is no model API {api!r}; {APIS.nearest(api)}.")
    model: ChatModel = APIS.get(api)(endpoint)
    return model
