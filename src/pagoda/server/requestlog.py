"""`--enable-log-requests` and `--enable-log-outputs`: sizes and parameters; text only if asked."""

from pagoda.base.log import get_logger
from pagoda.config.server import ServerConfig
from pagoda.engine.outputs import OutputDelta
from pagoda.server.replies.generation import Generation, Watch

_log = get_logger(__name__)

_MISSES = {
    "new": "what follows is new",
    "evicted": "what follows had to make room for others",
    "no_state": "behind it no state of the recurrent layers was kept",
}
# Lists of stop strings or bad words may be a megabyte.
_MAX_PARAMS = 1000


def log_request(config: ServerConfig, response_id: str, generation: Generation) -> None:
    """A line for the request now, one for what was cached of it, and one for each choice when it is
    complete.

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
    watches: list[Watch] = []
    if config.enable_log_requests:
        watches.append(_PrefixLog(response_id, config.max_log_len, generation).add)
    if config.enable_log_outputs:
        most = config.max_log_len
        watches.append(_ReplyLog(response_id, most, generation.num_choices).add)

    def tell(index: int, output: OutputDelta) -> None:
        for watch in watches:
            watch(index, output)

    if watches:
        generation.watch = tell


class _PrefixLog:
    """How much of each prompt was cached, and why not more."""

    def __init__(self, response_id: str, most: int | None, generation: Generation):
        self._id, self._most, self._generation = response_id, most, generation

    def add(self, index: int, output: OutputDelta) -> None:
        cached, miss = output.num_cached_tokens, output.prefix_miss
        # Choices of a prompt share what the first one finds or computes.
        if cached is None or miss == "off" or index % self._generation.sampling.n:
            return
        why = "that is all" if miss is None else _MISSES[miss]
        host, disk = output.cached_tiers
        origins = [f"{host} in host memory"] * bool(host) + [f"{disk} from disk"] * bool(disk)
        where = f" ({', '.join(origins)})" if origins else ""
        text = ""
        if self._most and miss is not None:
            text = f": {self._generation.prompt_text(index, self._most, cached)!r}"
        num_tokens = len(self._generation.prompt_ids(index))
        _log.info(
            "Prefix of %s: %d of %d prompt tokens were cached%s; %s%s",
            self._id, cached, num_tokens, where, why, text,
        )  # fmt: skip


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
