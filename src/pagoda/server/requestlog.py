"""`--enable-log-requests` and `--enable-log-outputs`: sizes and parameters; text only if asked."""

from pagoda.base.log import get_logger
from pagoda.config.server import ServerConfig
from pagoda.engine.outputs import OutputDelta
from pagoda.server.replies.generation import Generation

_log = get_logger(__name__)

# Lists of stop strings or bad words may be a megabyte.
_MAX_PARAMS = 1000


def log_request(config: ServerConfig, response_id: str, generation: Generation) -> None:
    """A line for the request now, and one for each choice when it is complete.

    Text is quoted, and the log escapes what could end a line.
    """
    if config.enable_log_requests:
        prompt = ""
        if config.max_log_len:
            prompt = f", first prompt: {generation.prompt_text(0, config.max_log_len)!r}"
        _log.info(
            "Received request %s: prompt tokens: %d, choices: %d, params: %s%s",
            response_id, generation.num_prompt_tokens, generation.num_choices,
            str(generation.sampling)[:_MAX_PARAMS], prompt,
        )  # fmt: skip
    if config.enable_log_outputs:
        generation.watch = _ReplyLog(response_id, config.max_log_len, generation.num_choices).add


class _ReplyLog:
    def __init__(self, response_id: str, most: int | None, num_choices: int):
        self._id = response_id
        self._most = most
        self._texts = [""] * num_choices
        self._num_tokens = [0] * num_choices

    def add(self, index: int, output: OutputDelta) -> None:
        self._texts[index] = (self._texts[index] + output.text)[: self._most]
        self._num_tokens[index] += len(output.token_ids)
        if output.finish_reason is not None:
            _log.info(
                "Reply %s, choice %d: %s after %d tokens, text: %r",
                self._id, index, output.finish_reason, self._num_tokens[index],
                self._texts[index],
            )  # fmt: skip
