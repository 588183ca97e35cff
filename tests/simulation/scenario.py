"""What a seed says: models, who asks them for what, and what befalls them."""

import random
from dataclasses import dataclass, replace

from pagoda.core.messages import AddRequest
from pagoda.core.sampling import SamplingParams
from pagoda.core.step_time import StepCost
from tests.simulation.model import BLOCK_SIZE, MAX_MODEL_LEN, ModelPlan, picture
from tests.unit.core.fake_runner import VOCAB

MEMORY = 100
"""Bytes that all models may take together."""

HARMLESS = ("delay", "pause", "clock_jump", "suspend", "slow_step")
HARMFUL = (
    "kill", "kill_at_message", "failing_step", "failing_steps", "sigterm", "disk_full",
    "start_fails",
)  # fmt: skip
OPERATIONS = ("sleep", "wake", "unload")


@dataclass(frozen=True)
class Event:
    at: float
    kind: str
    model: str
    value: float = 0.0


@dataclass(frozen=True)
class Ask:
    """One request of a client."""

    message: AddRequest
    n: int = 1
    stream: bool = True
    leaves_after: float | None = None
    """Seconds after which its client is gone, whatever it does then."""
    reads_every: float = 0.0
    """Seconds that a slow reader lets pass between two looks."""
    pause: float = 0.0
    """Before it is sent."""


@dataclass(frozen=True)
class ClientPlan:
    name: str
    model: str
    begins: float
    asks: tuple[Ask, ...]


@dataclass(frozen=True)
class Scenario:
    seed: int
    http: bool
    """Whether clients come through the HTTP application."""
    models: tuple[ModelPlan, ...]
    clients: tuple[ClientPlan, ...]
    late: tuple[ClientPlan, ...]
    """Those who come while the server shuts down."""
    events: tuple[Event, ...]
    idle_seconds: float
    queue_limit: int | None
    drain_seconds: float
    second_signal: float | None
    """Seconds after the first."""

    @property
    def harmed(self) -> bool:
        """Whether a request may end with an error."""
        return any(event.kind in HARMFUL + OPERATIONS + ("stop", "hang") for event in self.events)


def scenario_of(seed: int) -> Scenario:
    chance = random.Random(seed)
    models = _models(chance)
    span = chance.choice((2.0, 5.0, 20.0))
    http = chance.random() < 0.4
    makers = _Asks(chance, http)
    clients = tuple(
        makers.client(f"c{i}", chance.choice(models).name, chance.uniform(0, span))
        for i in range(chance.randint(2, 10))
    )
    late = tuple(
        makers.client(f"late{i}", chance.choice(models).name, chance.uniform(0, 0.5))
        for i in range(chance.choice((0, 0, 2, 4)))
    )
    return Scenario(
        seed=seed,
        http=http,
        models=models,
        clients=clients,
        late=late,
        events=_events(chance, models, span) + _grave_events(seed, models, span),
        idle_seconds=chance.choice((0.0, 0.0, 3.0, 30.0)),
        queue_limit=chance.choice((None, None, None, 2)),
        drain_seconds=chance.choice((0.0, 0.2, 5.0)),
        second_signal=chance.choice((None, None, 0.1, 1.0)),
    )


def smaller(scenario: Scenario) -> list[Scenario]:
    """The same with one event, one client or one request less."""
    found = [
        replace(scenario, events=scenario.events[:i] + scenario.events[i + 1 :])
        for i in range(len(scenario.events))
    ]
    for name in ("late", "clients"):
        clients = getattr(scenario, name)
        for i, client in enumerate(clients):
            found.append(replace(scenario, **{name: clients[:i] + clients[i + 1 :]}))
            if len(client.asks) > 1:
                shorter = replace(client, asks=client.asks[:-1])
                less = clients[:i] + (shorter,) + clients[i + 1 :]
                found.append(replace(scenario, **{name: less}))
    return found


def _models(chance: random.Random) -> tuple[ModelPlan, ...]:
    return tuple(_model(chance, name) for name in "abc"[: chance.choice((1, 1, 1, 2, 3))])


def _model(chance: random.Random, name: str) -> ModelPlan:
    num_states = chance.choice((0, 0, 0, 2))
    plan = ModelPlan(
        name=name,
        size=chance.choice((20, 40, 60)),
        num_blocks=chance.choice((20, 28, 60, 200)),
        windows=chance.choice(((None,), (None,), (None, 8))),
        num_states=num_states,
        limits={
            "max_num_reqs": chance.choice((2, 4, 8)),
            "max_num_batched_tokens": chance.choice((8, 16, 64)),
            "policy": chance.choice(("fcfs", "fcfs", "priority")),
            "long_prefill_token_threshold": chance.choice((0, 0, 8)),
            "enable_chunked_prefill": chance.random() < 0.9,
        },
        prefix_caching=chance.random() < 0.85,
        steps_in_flight=chance.choice((1, 2)),
        cost=chance.choice(
            (
                StepCost(per_token=2.6e-4, base=1.9e-3, per_pair=6e-8),
                StepCost(per_token=1e-3, base=1e-2, per_pair=1e-6),
                StepCost(per_token=1e-2, base=5e-2, per_pair=1e-5),
            )
        ),
        start_seconds=chance.choice((0.2, 2.0, 8.0)),
        keeps_kv=chance.random() < 0.4,
    )
    # One request must always fit, as the planner sees to it.
    while not plan.make()[0].kv.fits_alone(MAX_MODEL_LEN, plan.limits["max_num_batched_tokens"]):
        plan = replace(plan, num_blocks=2 * plan.num_blocks)
    return plan


class _Asks:
    def __init__(self, chance: random.Random, http: bool):
        self._chance = chance
        self._http = http
        self._stems = [
            [chance.randrange(VOCAB) for _ in range(chance.choice((6, 16, 40)))] for _ in range(3)
        ]

    def client(self, name: str, model: str, begins: float) -> ClientPlan:
        count = self._chance.choice((1, 1, 2, 3))
        asks = tuple(self._ask(f"{name}.{i}") for i in range(count))
        return ClientPlan(name, model, begins, asks)

    def _ask(self, req_id: str) -> Ask:
        chance = self._chance
        n = chance.choice((1, 1, 1, 2, 3))
        return Ask(
            self._message(req_id),
            n=n,
            stream=chance.random() < 0.7,
            leaves_after=chance.choice((None, None, None, chance.expovariate(2))),
            reads_every=chance.choice((0.0, 0.0, 0.0, 0.3)),
            pause=chance.choice((0.0, 0.0, chance.uniform(0, 2))),
        )

    def _message(self, req_id: str) -> AddRequest:
        chance = self._chance
        prompt = list(chance.choice(self._stems))
        prompt += [chance.randrange(VOCAB) for _ in range(chance.randint(1, 12))]
        stops = [chance.randrange(VOCAB)] if chance.random() < 0.3 else []
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=chance.choice((1, 4, 12, 30)),
            stop_token_ids=stops,
            ignore_eos=True,
            logprobs=0 if chance.random() < 0.1 else None,
        )
        message = AddRequest(
            req_id=req_id,
            prompt_token_ids=prompt,
            sampling=sampling,
            priority=chance.choice((0, 0, 1)),
            cache_salt=chance.choice((None, None, None, "salt")),
        )
        if not self._http:
            self._vary(message)
        return message

    def _vary(self, message: AddRequest) -> None:
        """What a request has that needs more than token ids."""
        chance = self._chance
        kind = chance.random()
        if kind < 0.1:
            message.kind = "pool"
            message.sampling = SamplingParams()
        elif kind < 0.2:
            late = chance.choice(("0.001", "0.05", "0.3"))
            message.grammar = late + chance.choice(("", "", " bad"))
        elif kind < 0.35:
            length = min(len(message.prompt_token_ids) - 1, 2 * BLOCK_SIZE)
            message.media = [picture(chance.randrange(3), 0, length)]


def _events(chance: random.Random, models: tuple[ModelPlan, ...], span: float) -> tuple[Event, ...]:
    kinds: tuple[str, ...] = chance.choice(
        ((), HARMLESS, OPERATIONS, HARMLESS + HARMFUL, HARMLESS + HARMFUL + OPERATIONS)
    )
    count = chance.randint(1, 6)
    return (
        tuple(_event(chance, kind, models, span) for kind in chance.choices(kinds, k=count))
        if kinds
        else ()
    )


def _grave_events(seed: int, models: tuple[ModelPlan, ...], span: float) -> tuple[Event, ...]:
    """What only another process mends: an engine that is stopped for ever, one whose step never
    ends, one that dies again and again. The rest of a scenario is the same with them and without.
    """
    chance = random.Random(f"grave {seed}")
    events: list[Event] = []
    for kind in ("stop", "hang", "kill"):
        befalls = chance.random() < 0.2
        at, model = chance.uniform(0, span), chance.choice(models).name
        if befalls:
            times = 3 if kind == "kill" else 1
            events += [Event(at + 30 * i, kind, model) for i in range(times)]
    return tuple(events)


def _event(chance: random.Random, kind: str, models: tuple[ModelPlan, ...], span: float) -> Event:
    value = {
        "delay": chance.choice((0.01, 0.05, 0.4)),
        "pause": chance.choice((0.1, 2.0, 15.0)),
        "clock_jump": chance.choice((-3600.0, -5.0, 5.0, 86400.0)),
        "suspend": chance.choice((1.0, 60.0, 4000.0)),
        "slow_step": chance.choice((0.5, 5.0, 25.0)),
        "kill_at_message": float(chance.randint(1, 60)),
        "disk_full": chance.choice((1.0, 10.0)),
        "sleep": float(chance.choice((1, 1, 2)) + 10 * chance.choice((0, 1))),
        "unload": chance.choice((0.0, 1.0)),
    }.get(kind, 0.0)
    return Event(chance.uniform(0, 1.5 * span), kind, chance.choice(models).name, value)
