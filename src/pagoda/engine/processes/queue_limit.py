"""How many requests may wait for an engine: `--max-num-queued-reqs` and `-tokens`."""

from collections.abc import Sequence

from pagoda.base.errors import QueueFullError
from pagoda.config.engine import SchedulerConfig
from pagoda.core.messages import AddRequest, EngineReady, EngineStats


class QueueLimit:
    """Kept where requests are sent off, before anybody was promised a reply.

    The engine's own count lags behind what is on its way there, so what waits is worked out: in
    order of arrival, the requests without a sign of life that are more than the engine has rows
    for, or more than it runs where it lets others wait.
    """

    def __init__(self, config: SchedulerConfig):
        self._max_reqs = config.max_num_queued_reqs
        self._max_tokens = config.max_num_queued_tokens
        self.active = self._max_reqs is not None or self._max_tokens is not None
        self.rejections = {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}
        """Refused requests by the limit that they met, as the metrics tell them."""
        self._silent: dict[str, int] = {}
        """Prompt tokens of the requests that have not been heard of."""

    def admit(
        self,
        requests: Sequence[AddRequest],
        num_in_flight: int,
        stats: EngineStats,
        ready: EngineReady,
    ) -> None:
        """Count the requests in, or raise QueueFullError. What no other request delays is always
        let in, or it never would be."""
        new = {request.req_id: len(request.prompt_token_ids) for request in requests}
        if num_in_flight:
            rows = stats.num_running if stats.num_waiting else ready.max_num_seqs
            free = max(0, rows - (num_in_flight - len(self._silent)))
            queued = [*self._silent.values(), *new.values()][free:]
            self._check("max_num_queued_reqs", "requests", len(queued), self._max_reqs, len(new))
            self._check(
                "max_num_queued_tokens", "prompt tokens", sum(queued), self._max_tokens, len(new)
            )
        self._silent |= new

    def forget(self, req_id: str) -> None:
        """The request was heard of, or is gone."""
        self._silent.pop(req_id, None)

    def _check(self, limit: str, what: str, queued: int, most: int | None, new: int) -> None:
        if most is not None and queued > most:
            self.rejections[limit] += new
            flag = limit.replace("_", "-")
            raise QueueFullError(
                f"The server is busy: {queued} {what} would wait, and --{flag} allows {most}. "
                "Send the request again later."
            )
