"""What stays in the host's memory: as flags say, or as little as makes the rest fit the GPU."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import CapacityError, ConfigError
from pagoda.base.facts import DeviceFacts
from pagoda.base.units import format_bytes
from pagoda.base.words import say, with_and
from pagoda.config.engine import DeviceConfig, EngineConfig
from pagoda.config.option import flag_name
from pagoda.planner.memory.placement import Placement, placed, placements
from pagoda.planner.memory.plan import MemoryPlan
from pagoda.planner.memory.pool import has_room, wanted_contexts
from pagoda.planner.memory.weights import HeldWeight
from pagoda.planner.reason import Reason

_FLAGS = ("cpu_offload_gb", "n_cpu_moe", "n_gpu_layers")
# For what start-up measures beyond its prediction, and what it leaves to others.
_MARGIN = 512 << 20
# The host's memory is also for the file that is read, the server and everything else.
_HOST_RESERVE = 1 << 30
_GIB = 1 << 30


def resolve_offload(
    config: EngineConfig,
    spec: ModelSpec,
    held: Sequence[HeldWeight],
    plan: MemoryPlan,
    facts: DeviceFacts,
    reasons: list[Reason],
) -> tuple[float, MemoryPlan]:
    """`plan`, whose weights are all on the device, with those in the host's memory that flags put
    there; or, without such flags, those that must be there, and how many GiB these are.

    ConfigError for flags that contradict each other, CapacityError where the host's memory does not
    suffice for them. Where nothing fits, the plan is returned as it is.
    """
    given = [name for name in _FLAGS if getattr(config.device, name) is not None]
    if facts.device == "cpu":
        for name in given:
            value = getattr(config.device, name)
            why = say("without effect: the model runs on the CPU")
            reasons.append(Reason(name, value, why))
        return 0.0, plan
    if config.parallel.pipeline_parallel_size > 1:
        if given:
            raise ConfigError(
                f"{flag_name(given[0])}: the stages of a pipeline keep their weights on their "
                "devices; leave it out, or raise --pipeline-parallel-size."
            )
        return 0.0, plan
    search = _Search(config, spec, held, plan, facts)
    if given:
        chosen = search.asked(config.device, given)
        search.check_host(chosen, given[0])
        why = say("{what} in the host's memory", what=_words(chosen, spec))
        reasons.append(Reason(given[0], getattr(config.device, given[0]), why))
        return 0.0, search.plan_with(chosen)
    if has_room(config, plan, facts, search.least_context):
        return 0.0, plan
    found = search.smallest()
    if found is None:
        return 0.0, plan
    # Rounded up, so that the flag gives the same.
    gib = -(-100 * found.nbytes // _GIB) / 100
    why = say(
        "{what} in the host's memory, for the device's is too small for all",
        what=_words(found, spec),
    )
    reasons.append(Reason("cpu_offload_gb", gib, why))
    return gib, search.plan_with(found)


class _Search:
    def __init__(
        self,
        config: EngineConfig,
        spec: ModelSpec,
        held: Sequence[HeldWeight],
        plan: MemoryPlan,
        facts: DeviceFacts,
    ):
        self._config, self._spec, self._held = config, spec, held
        self._plan, self._facts = plan, facts
        self._steps = placements(spec)
        self.least_context, self._context = wanted_contexts(config, spec)

    def asked(self, device: DeviceConfig, given: Sequence[str]) -> Placement:
        """As flags say."""
        gib = device.cpu_offload_gb
        if gib is not None:
            if len(given) > 1:
                raise ConfigError(
                    f"--cpu-offload-gb and {flag_name(given[1])} say the same in two ways; leave "
                    "out one of them."
                )
            steps = range(len(self._steps))
            # The most that such a budget holds.
            budget = gib * _GIB
            return self._at(bisect_right(steps, budget, key=lambda i: self._at(i).nbytes) - 1)
        count = len(self._spec.layers)
        experts, on_device = device.n_cpu_moe or 0, device.n_gpu_layers
        layers = count - on_device if isinstance(on_device, int) else 0
        return placed(
            self._spec,
            self._held,
            count if isinstance(experts, str) else experts,
            max(0, layers),
        )

    def smallest(self) -> Placement | None:
        """With what leaves room for the context; None where nothing does, or where it is not known
        how much memory the host has."""
        steps, budget = range(len(self._steps)), self._host_budget
        if budget is None:
            return None
        most = bisect_right(steps, budget, key=lambda i: self._at(i).nbytes) - 1
        first = bisect_left(steps, True, key=lambda i: self._fits_at(i, _MARGIN))
        index = min(first, most)
        return self._at(index) if self._fits_at(index, 0) else None

    def check_host(self, chosen: Placement, flag: str) -> None:
        budget = self._host_budget
        if budget is not None and chosen.nbytes > budget:
            raise CapacityError(
                say(
                    "{flag} puts {size} of weights into the host's memory, which has room for "
                    "{room}; ask for less.",
                    flag=flag_name(flag),
                    size=format_bytes(chosen.nbytes),
                    room=format_bytes(max(0, budget)),
                )
            )

    def plan_with(self, chosen: Placement) -> MemoryPlan:
        return replace(self._plan, weights=self._plan.weights - chosen.nbytes, placement=chosen)

    @property
    def _host_budget(self) -> int | None:
        """Bytes for one device's share; None where it is not known."""
        if self._facts.host_memory is None:
            return None
        size = self._config.parallel.num_ranks
        return (self._facts.host_memory - _HOST_RESERVE) // size

    def _at(self, index: int) -> Placement:
        return placed(self._spec, self._held, *self._steps[index])

    def _fits_at(self, index: int, margin: int) -> bool:
        plan = self.plan_with(self._at(index))
        return has_room(self._config, plan, self._facts, self._context, margin)


def _words(chosen: Placement, spec: ModelSpec) -> str:
    """`the experts of 12 of 48 layers, 9.00 GiB`."""
    count, parts = len(spec.layers), []
    if chosen.experts:
        experts = say("the experts of {some} of {all} layers", some=chosen.experts, all=count)
        parts.append(experts)
    if chosen.layers:
        layers = say("all matrices of {some} of {all} layers", some=chosen.layers, all=count)
        parts.append(layers)
    what = with_and(parts) if parts else say("no weights")
    return say("{what}, {size},", what=what, size=format_bytes(chosen.nbytes))
