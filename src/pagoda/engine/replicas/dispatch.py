"""The requests of several engines. Each runs on one, and moves to another if that one dies."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from pagoda.base.errors import EngineDeadError, QueueFullError, RequestError
from pagoda.base.log import get_logger
from pagoda.config.engine import EngineConfig
from pagoda.core.messages import AddRequest, RequestDelta, is_progress
from pagoda.core.routing import LeastLoaded, PrefixAware, ReplicaLoad, Router
from pagoda.engine.processes.asking import NO_MEDIA
from pagoda.engine.processes.inbox import Inbox
from pagoda.engine.replicas.journey import DivergedError, FilteredInbox, Journey
from pagoda.engine.replicas.replica import Replica
from pagoda.text.media.base import Values

log = get_logger(__name__)

# One that was inside of two deaths and told nothing new between may be what engines die of.
_MOST_DEATHS = 2
# So full that a router chooses it last: an engine that takes no requests now.
_AWAY = ReplicaLoad(requests=1 << 62, prompt_tokens=0, max_requests=1, kv_tokens=1)


class Dispatch:
    def __init__(self, config: EngineConfig, replicas: Sequence[Replica]):
        self._caches = config.cache.enable_prefix_caching
        self._replicas = replicas
        self._router: Router = LeastLoaded()
        self._prompt_tokens = [0] * len(replicas)
        """Tokens of the prompts at each engine."""
        self._journeys: dict[str, Journey] = {}

    def __len__(self) -> int:
        return len(self._journeys)

    def submit(self, requests: Sequence[AddRequest], media: Mapping[str, Values]) -> Inbox:
        """As `Asking.submit`, while an engine serves."""
        for request in requests:
            if request.req_id in self._journeys:
                raise RequestError(f"A request with the id {request.req_id!r} is already running.")
        inbox = FilteredInbox(self._hear)
        try:
            # Choices of a prompt have one list of tokens, and go together.
            for _, group in groupby(requests, lambda request: id(request.prompt_token_ids)):
                self._send_off([*group], media, inbox)
        except BaseException:
            self.drop(request.req_id for request in requests)
            raise
        return inbox

    def drop(self, req_ids: Iterable[str]) -> None:
        """Forget requests, and stop those that still run."""
        for req_id in req_ids:
            journey = self._journeys.pop(req_id, None)
            if journey is not None and journey.engine is not None:
                self._replicas[journey.engine].drop([req_id])
                self._leave(journey)

    def _send_off(
        self, requests: list[AddRequest], media: Mapping[str, Values], inbox: FilteredInbox
    ) -> None:
        """Send requests with the same prompt to the best engine whose queue has room. Raises as
        `submit`."""
        loads = self._loads()
        refusal: QueueFullError | EngineDeadError = EngineDeadError("No engine is ready.")
        while (index := self._choose(requests[0], loads)) is not None:
            try:
                self._replicas[index].submit(requests, media, inbox)
            except QueueFullError as error:
                refusal, loads[index] = error, _AWAY
                continue
            for request in requests:
                journey = self._journeys[request.req_id] = Journey(request, inbox)
                self._enter(journey, index)
            return
        raise refusal

    def _loads(self) -> list[ReplicaLoad]:
        """Stalled engines take requests only if no other one does."""
        ready = [each for each in self._replicas if each.state == "ready"]
        serving = [each for each in ready if each.stalled is None] or ready
        return [
            self._load(index) if each in serving else _AWAY
            for index, each in enumerate(self._replicas)
        ]

    def _load(self, index: int) -> ReplicaLoad:
        replica = self._replicas[index]
        assert replica.ready is not None  # it serves
        return ReplicaLoad(
            replica.num_running,
            self._prompt_tokens[index],
            replica.ready.max_num_seqs,
            max(1, replica.ready.kv_tokens),  # an encoder has none
        )

    def _choose(self, request: AddRequest, loads: Sequence[ReplicaLoad]) -> int | None:
        """None where all are away."""
        if all(load is _AWAY for load in loads):
            return None
        return self._router.choose(request, loads)

    def _enter(self, journey: Journey, index: int) -> None:
        journey.engine = index
        self._prompt_tokens[index] += len(journey.request.prompt_token_ids)

    def _leave(self, journey: Journey) -> None:
        assert journey.engine is not None
        self._prompt_tokens[journey.engine] -= len(journey.request.prompt_token_ids)
        journey.engine = None

    def _hear(self, delta: RequestDelta) -> RequestDelta | None:
        """The delta that a request's reader gets."""
        journey = self._journeys.get(delta.req_id)
        if journey is None or journey.engine is None:
            return delta  # from its reader itself
        delta.engine = journey.engine
        if is_progress(delta):
            return None if journey.begun else delta
        try:
            told = journey.told(delta)
        except DivergedError:
            self._fail_diverged(journey, delta)
            return None
        if delta.finish_reason is not None:
            self._leave(journey)
            del self._journeys[delta.req_id]
        return told

    def _fail_diverged(self, journey: Journey, delta: RequestDelta) -> None:
        if delta.finish_reason is None:
            self.drop([delta.req_id])
        else:  # its engine knows no more of it
            self._leave(journey)
            del self._journeys[delta.req_id]
        log.error("The request %s did not give the same tokens again.", delta.req_id)
        journey.inbox.end(
            f"{journey.cause} The request ran again on another engine and did not give the same "
            "tokens, so it cannot go on."
        )

    def serve(self, block_size: int) -> None:
        """An engine is ready; its blocks have so many tokens. Waiting requests go to it."""
        if self._caches and not isinstance(self._router, PrefixAware):
            self._router = PrefixAware(block_size)
        for journey in [each for each in self._journeys.values() if each.engine is None]:
            self._go_on(journey)

    def lose(self, index: int, cause: str) -> None:
        """An engine's process ended. Its requests move to others."""
        inside = [each for each in self._journeys.values() if each.engine == index]
        if inside:
            log.warning("%d requests of engine %d go on elsewhere.", len(inside), index)
        for journey in inside:
            self._leave(journey)
            journey.cause = cause
            journey.deaths += 1
            try:
                journey.media = self._replicas[index].give_up(journey.request)
            except OSError as error:
                log.error("Pictures of a request are lost: %s", error)
                self._end(journey, "The engine died, and the pictures of the request were lost.")
                continue
            if journey.deaths >= _MOST_DEATHS:
                self._end(journey, cause)
            else:
                self._go_on(journey)

    def _go_on(self, journey: Journey) -> None:
        """Run a request whose engine died on the best other engine. If none serves, it waits."""
        index = self._choose(journey.request, self._loads())
        if index is None:
            return
        replica = self._replicas[index]
        try:
            replica.take_over(journey.again(), journey.media, journey.inbox)
        except Exception as error:  # noqa: BLE001 - whatever it is, its reader is told
            log.error("A request could not go on elsewhere: %s", error)
            self._end(journey, f"{journey.cause} It could not go on elsewhere: {error}")
            return
        self._enter(journey, index)
        journey.media = NO_MEDIA

    def end_waiting(self, cause: str) -> None:
        """End the requests that wait for an engine."""
        for journey in [each for each in self._journeys.values() if each.engine is None]:
            self._end(journey, cause)

    def _end(self, journey: Journey, cause: str) -> None:
        """End a request that no engine has."""
        del self._journeys[journey.request.req_id]
        journey.inbox.end(cause)
