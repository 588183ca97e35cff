"""Sessions of coding agents, made up: the prompts that they send, and the replies they get."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from pagoda.config.option import Options, option

END_OF_TURN = 2
"""Ends each message, as a chat template's token does."""
_FIRST_TOKEN, _VOCAB = 16, 1 << 17


@dataclass(frozen=True)
class TraceConfig(Options):
    """How many agents work, and how long their texts are."""

    sessions: int = option(20, "Sessions, each of an agent that calls tools.", bounds=(1, 1000))
    subagents: int = option(3, "Subagents of each session.", bounds=(0, 100))
    delegations: int = option(1, "How often a session starts new ones.", bounds=(1, 1000))
    turns: int = option(24, "Requests of each session.", bounds=(1, 1000))
    subagent_turns: int = option(6, "Requests of each subagent.", bounds=(1, 1000))
    system_tokens: int = option(
        6000, "Tokens of system prompt and tools, which sessions share.", bounds=(1, 1 << 20)
    )
    result_tokens: int = option(600, "Tokens of a tool's result, on average.", bounds=(1, 1 << 20))
    reply_tokens: int = option(96, "Tokens of a reply, half of them thoughts.", bounds=(4, 1 << 16))
    seed: int = option(0, "Another seed makes other texts in another order.")


@dataclass(frozen=True)
class Turn:
    """One request of an agent."""

    prompt: list[int]
    reply: list[int]
    """What the model says to it, the end of the turn included."""


@dataclass
class Agent:
    """One conversation, and those of its subagents, which run while it waits."""

    session: str
    name: str | None
    """None: the session's main agent."""
    turns: Iterator[Turn]
    subagents: dict[int, list["Agent"]] = field(default_factory=dict)
    """Who starts behind so many of its turns."""


def make_sessions(config: TraceConfig) -> list[Agent]:
    """The main agents, in the order in which they begin."""
    rng = random.Random(config.seed)
    system = _text(rng, config.system_tokens)
    # Subagents of one kind share a shorter prompt.
    kinds = [_text(rng, max(1, config.system_tokens // 3)) for _ in range(config.subagents)]
    return [_session(config, f"session-{number}", system, kinds, rng.random())
            for number in range(config.sessions)]  # fmt: skip


def _session(
    config: TraceConfig, name: str, system: list[int], kinds: list[list[int]], seed: float
) -> Agent:
    rng = random.Random(seed)
    agent = Agent(name, None, _turns(config, rng.random(), system, config.turns))
    for delegation in range(1, config.delegations + 1):
        # One starts two thirds through: the session has come back before, and will again.
        turn = max(1, round(config.turns * 2 * delegation / (2 * config.delegations + 1)))
        agent.subagents.setdefault(turn, []).extend(
            Agent(
                name,
                f"agent-{delegation}-{number}",
                _turns(config, rng.random(), kind, config.subagent_turns),
            )
            for number, kind in enumerate(kinds)
        )
    return agent


def _turns(config: TraceConfig, seed: float, system: list[int], count: int) -> Iterator[Turn]:
    """A prompt is the one before with what came since, but for thoughts: templates leave out those
    in front of the last message of the user."""
    rng = random.Random(seed)
    own = _text(rng, max(1, config.system_tokens // 20))
    settled = [*system, END_OF_TURN, *own, END_OF_TURN]
    recent: list[tuple[list[int], list[int]]] = []
    """Since the last message of the user: thoughts, and what stays of a turn."""
    for number in range(count):
        prompt = [*settled, *(token for thought, rest in recent for token in (*thought, *rest))]
        thought = _text(rng, config.reply_tokens // 2)
        answer = [*_text(rng, config.reply_tokens - len(thought) - 1), END_OF_TURN]
        yield Turn(prompt, [*thought, *answer])
        result = _text(rng, max(1, round(rng.expovariate(1 / config.result_tokens))))
        recent.append((thought, [*answer, *result, END_OF_TURN]))
        if number % 6 == 5:  # The user says something.
            settled += [token for _, rest in recent for token in rest]
            settled += [*_text(rng, 40), END_OF_TURN]
            recent = []


def _text(rng: random.Random, count: int) -> list[int]:
    return rng.choices(range(_FIRST_TOKEN, _VOCAB), k=count)
