"""Clients of every kind, each of which knows its answer."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import httpx

from tools.soak.answers import Channels, Reply, Verdict, events, judge
from tools.soak.cases import Case, Rude
from tools.soak.gates import Asked
from tools.soak.house import House
from tools.soak.trouble import SERVER, Faults, Trouble

# How clients behave, by share: read all, leave on the way, leave unread, read slowly.
PLAIN, LEAVE, UNREAD, SLOW = "plain", "leave", "unread", "slow"
SHARES = {PLAIN: 60, LEAVE: 15, UNREAD: 10, SLOW: 15}
SHARE_RUDE, SHARE_LOOK, SHARE_SALTED = 0.06, 0.04, 0.3
_LOOKS = ("/metrics", "/health", "/v1/models", "/slots", "/props", "/load")
_SLOW_SECONDS = 0.05


class Load:
    """Keeps its clients busy while `open`; `quiet` lets them end and holds the next ones."""

    def __init__(self, house: House, cases: Sequence[Case], rudes: Sequence[Rude], deadline: float):
        self.house = house
        self.cases = {case.name: case for case in cases}
        self.first: dict[str, Case] = {}
        """The case by which a model shows that it serves."""
        for case in cases:
            self.first.setdefault(case.model, case)
        self._rudes = rudes
        self._deadline = deadline
        self.known: dict[str, Channels] = {}
        self._tokens: dict[str, int] = {}
        self.trouble, self.faults = Trouble(), Faults()
        self.outcomes: Counter[str] = Counter()
        self.served: Counter[str] = Counter()
        """Requests that came whole, by model, and of all under `server`."""
        self.open = asyncio.Event()
        self.over = False
        self._under_way = 0
        self._http = self._client()

    def _client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        return httpx.AsyncClient(timeout=None, limits=limits, trust_env=False)

    async def learn(self) -> None:
        """Ask a quiet server for each answer, whole and as a stream, which must say the same."""
        for case in self.cases.values():
            reply = await self._whole(case, Reply())
            if reply.status != 200 or not reply.channels:
                raise RuntimeError(f"{case.name}: {reply.status} {reply.errors}")
            self.known[case.name], self._tokens[case.name] = reply.channels, reply.tokens
            self._count(case, "complete", self.house.asked)
            if case.streams:
                await self.ask(case, stream=True)

    async def work(self, seed: str) -> None:
        """One client, until the load is over."""
        chance = random.Random(seed)
        while not self.over:
            await self.open.wait()
            self._under_way += 1
            try:
                await self._one(chance)
            finally:
                self._under_way -= 1

    @contextlib.asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Nothing is under way, and no connection is open, within this."""
        self.open.clear()
        while self._under_way:
            await asyncio.sleep(0.02)
        await self._http.aclose()
        self._http = self._client()
        yield
        await self._http.aclose()
        self._http = self._client()
        self.open.set()

    async def _one(self, chance: random.Random) -> None:
        fate = chance.random()
        if fate < SHARE_RUDE:
            await self.be_rude(chance.choice(self._rudes))
        elif fate < SHARE_RUDE + SHARE_LOOK:
            await self._look(chance.choice(_LOOKS))
        else:
            case = chance.choice([*self.cases.values()])
            salted = case.streams and chance.random() < SHARE_SALTED
            asked = case.salted(str(chance.random())) if salted else case
            manner = chance.choices([*SHARES], [*SHARES.values()])[0]
            stream = case.streams and chance.random() < 0.7
            await self.ask(asked, stream=stream, manner=manner, chance=chance)

    async def ask(
        self,
        case: Case,
        *,
        stream: bool = False,
        manner: str = PLAIN,
        chance: random.Random | None = None,
    ) -> None:
        """Send one request, hold its reply against the known one, and count what came of it."""
        asked, begun, reply = self.house.asked, time.monotonic(), Reply()
        asked.sent += 1
        left = False
        try:
            async with asyncio.timeout(self._deadline):
                left = await self._exchange(case, stream, manner, chance or random.Random(0), reply)
        except TimeoutError:
            self.faults.add("hangs", f"{case.name}: nothing for {self._deadline:g} s")
            left = True
        except httpx.HTTPError as error:
            reply.broken = True
            reply.errors.append(f"{type(error).__name__}: {error}")
        except (ValueError, LookupError, TypeError) as error:
            reply.errors.append(f"not understood: {error!r}")
        if left:
            verdict = Verdict("left")
        else:
            verdict = judge(
                reply, self.known[case.name],
                troubled=self.trouble.since(case.model, begun),
                down=self.trouble.since(SERVER, begun),
            )  # fmt: skip
        if verdict.fault:
            self.faults.add("replies", f"{case.name}{' (stream)' * stream}: {verdict.fault}")
        self._count(case, verdict.kind, asked)
        if verdict.kind == "refused":
            await asyncio.sleep(0.2)

    def _count(self, case: Case, kind: str, asked: Asked) -> None:
        self.outcomes[kind] += 1
        if kind == "complete":
            asked.completed += case.choices
            asked.tokens += self._tokens[case.name]
            self.served[case.model] += 1
            self.served["server"] += 1
        else:
            asked.unsure += case.choices
            asked.unsure_tokens += case.choices * case.max_tokens

    async def _exchange(
        self, case: Case, stream: bool, manner: str, chance: random.Random, reply: Reply
    ) -> bool:
        """Fill the reply; True when the client left before its end."""
        if manner == UNREAD:
            sending = asyncio.create_task(self._whole(case, Reply()))
            done, _ = await asyncio.wait((sending,), timeout=chance.random())
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            return True
        if not stream:
            await self._whole(case, reply)
            return False
        leave_after = chance.randint(1, 20) if manner == LEAVE else 0
        body = {**case.body, "stream": True}
        url = self.house.server.url + case.path
        async with self._http.stream("POST", url, json=body) as answer:
            await _begin(reply, answer)
            if reply.errors:
                return False
            number = 0
            async for event in events(answer):
                number += 1
                if number == leave_after:
                    return True
                reply.fold(event)
                if manner == SLOW:
                    await asyncio.sleep(_SLOW_SECONDS)
        return False

    async def _whole(self, case: Case, reply: Reply) -> Reply:
        async with self._http.stream(
            "POST", self.house.server.url + case.path, json=case.body
        ) as answer:
            await _begin(reply, answer)
            if not reply.errors:
                await answer.aread()
                reply.fold(answer.json())
        return reply

    async def serves(self, model: str) -> bool:
        """Whether a model gives its answer now; a wrong one is a fault."""
        case = self.first[model]
        self.house.asked.unsure += case.choices
        self.house.asked.unsure_tokens += case.choices * case.max_tokens
        try:
            async with asyncio.timeout(self._deadline):
                reply = await self._whole(case, Reply())
        except (httpx.HTTPError, TimeoutError):
            return False
        if reply.status == 200 and reply.channels != self.known[case.name]:
            self.faults.add("replies", f"{case.name}: another answer behind a restart")
        return reply.status == 200

    async def be_rude(self, rude: Rude) -> None:
        begun = time.monotonic()
        try:
            async with asyncio.timeout(self._deadline):
                answer = await self._http.post(
                    self.house.server.url + rude.path,
                    content=rude.content, headers={"Content-Type": rude.kind},
                )  # fmt: skip
        except TimeoutError:
            self.faults.add("hangs", f"rude, {rude.name}")
            return
        except httpx.HTTPError as error:
            if not self.trouble.since(SERVER, begun):
                self.faults.add("rude requests", f"{rude.name}: {type(error).__name__}")
            return
        away = answer.status_code == 503 and self.trouble.since(rude.model, begun)
        if not (400 <= answer.status_code < 500 or away):
            self.faults.add(
                "rude requests", f"{rude.name}: {answer.status_code} {answer.text[:100]}"
            )
        self.outcomes["rude"] += 1

    async def _look(self, path: str) -> None:
        begun = time.monotonic()
        try:
            async with asyncio.timeout(self._deadline):
                answer = await self._http.get(self.house.server.url + path)
        except (httpx.HTTPError, TimeoutError) as error:
            if not self.trouble.since(SERVER, begun):
                self.faults.add("scrapes", f"{path}: {type(error).__name__}")
            return
        fine = answer.status_code == 200 or (answer.status_code == 503 and self._harmed(begun))
        if not fine:
            self.faults.add("scrapes", f"{path}: {answer.status_code} {answer.text[:100]}")
        self.outcomes["scrapes"] += 1

    def _harmed(self, begun: float) -> bool:
        return any(self.trouble.since(model, begun) for model in self.first)

    async def text_of(self, path: str) -> str:
        return (await self._http.get(self.house.server.url + path, timeout=30)).text

    async def post(self, path: str, **body: str) -> int:
        """The status of a POST that operates the server; it may take long."""
        answer = await self._http.post(self.house.server.url + path, json=body, timeout=180)
        return answer.status_code

    async def close(self) -> None:
        await self._http.aclose()


async def _begin(reply: Reply, answer: httpx.Response) -> None:
    reply.status = answer.status_code
    reply.retry_after = "retry-after" in answer.headers
    if reply.status != 200:
        reply.errors.append((await answer.aread()).decode(errors="replace")[:200])
