"""What finished subagents left in the cache goes first; what a request gets is the same."""

import pytest

from pagoda.core import sessions

from .fake_runner import add_request, make_scheduler, run_all

MAIN = [(3 * i) % 24 for i in range(16)]
OTHER = [(3 * i + 1) % 24 for i in range(16)]
SHARED = [(5 * i + 2) % 24 for i in range(8)]


def subagent(name: str) -> list[int]:
    return [*SHARED, *((7 * i + len(name) + ord(name[0])) % 24 for i in range(16))]


class Client:
    def __init__(self, **shape):
        self.scheduler, self.runner = make_scheduler(**shape)
        self._count = 0

    def ask(self, prompt: list[int], session: str | None = None, agent: str | None = None) -> int:
        """How many tokens were cached."""
        self._count += 1
        add_request(
            self.scheduler, f"r{self._count}", prompt, max_tokens=1, session=session, agent=agent
        )
        deltas = run_all(self.scheduler, self.runner)[f"r{self._count}"]
        self.scheduler.check_integrity()
        return deltas[0].num_cached_tokens


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("shape", [{"num_blocks": 16}, {"num_blocks": 28, "windows": (None, 99)}])
def test_a_main_agent_outlives_finished_subagents(shape, knows: bool):
    """Room for two main agents and a subagent. Without keys the oldest goes, which is needed."""
    client = Client(**shape)
    keys = {"session": "one"} if knows else {}
    client.ask(OTHER)
    client.ask(MAIN, **keys)
    client.ask(subagent("a"), **keys, **({"agent": "a"} if knows else {}))
    client.ask([*MAIN, 1], **keys)
    client.ask([(11 * i + 5) % 24 for i in range(20)])
    assert (client.ask(OTHER) == 12) == knows


def test_what_subagents_share_stays():
    client = Client(num_blocks=40)
    for name in "ab":
        client.ask(subagent(name), "one", name)
    client.ask(subagent("c"), "two", "c")
    client.ask(MAIN, "one")
    assert client.ask(subagent("d"), "two", "d") == 8


def test_a_subagent_that_goes_on_all_the_same_loses_nothing_at_once():
    client = Client(num_blocks=40)
    client.ask(subagent("a"), "one", "a")
    client.ask(MAIN, "one")
    assert client.ask(subagent("a"), "one", "a") == 20


def test_sessions_of_different_salts_are_different():
    client = Client(num_blocks=16)
    known = client.scheduler._sessions
    client.ask(subagent("a"), "one", "a")
    add_request(client.scheduler, "other", MAIN, session="one", cache_salt="salt")
    assert known._num_agents == 1


def test_endless_names_are_forgotten(monkeypatch):
    monkeypatch.setattr(sessions, "_MOST_AGENTS", 8)
    client = Client(num_blocks=40)
    known = client.scheduler._sessions
    for number in range(40):
        client.ask(MAIN, f"session {number % 20}", f"agent {number}")
        assert known._num_agents == sum(map(len, known._agents.values())) <= 8
