"""`--enable-log-requests`: parameters and sizes, never a word of the text."""

from pagoda.base.log import get_logger
from pagoda.config.server import ServerConfig
from pagoda.server.generation import Generation

_log = get_logger(__name__)


def log_request(config: ServerConfig, response_id: str, generation: Generation) -> None:
    if config.enable_log_requests:
        _log.info(
            "Received request %s: prompt tokens: %d, choices: %d, params: %s",
            response_id, generation.num_prompt_tokens, generation.num_choices,
            generation.sampling,
        )  # fmt: skip
