"""Beam search over a model that tells which tokens are likely next. Names are vLLM's; what is kept,
how hypotheses are scored and when a search ends are transformers' (`early_stopping=False`)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pagoda.base.errors import RequestError
from pagoda.engine.outputs import TokenTable

_WIDEST = 256


@dataclass
class BeamSearchParams:
    """Raises RequestError for values that no search can have."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    """Only 0: the search takes the most likely, and draws nothing."""
    length_penalty: float = 1.0
    """A hypothesis' score is its log-probability by its generated tokens to this power; above 0
    longer ones gain."""

    def __post_init__(self) -> None:
        for name, most in (("beam_width", _WIDEST), ("max_tokens", None)):
            value = getattr(self, name)
            if type(value) is not int or value < 1 or (most is not None and value > most):
                end = "of at least 1" if most is None else f"from 1 to {most}"
                raise RequestError(f"{name} must be an integer {end}, got {value!r}.", name)
        if self.temperature != 0:
            raise RequestError(
                "Beam search takes the most likely tokens: leave temperature at 0.", "temperature"
            )


@dataclass
class BeamSearchSequence:
    """A hypothesis, from its prompt on."""

    tokens: list[int]
    """The prompt's, too."""
    logprobs: list[TokenTable] = field(default_factory=list)
    """One table for each generated token, with the others that were likely there."""
    cum_logprob: float = 0.0
    text: str | None = None
    """That of `tokens`."""
    finish_reason: str | None = None
    """`stop` or `length`."""
    stop_reason: int | None = None
    """The token that ended it."""


@dataclass
class BeamSearchOutput:
    sequences: list[BeamSearchSequence]
    """The best first; `beam_width` of them, or as many as there are."""


Expand = Callable[[Sequence[BeamSearchSequence], int], list[TokenTable]]
"""Takes hypotheses and a number, and gives so many of the most likely next tokens of each."""


class _Search:
    """The hypotheses of one prompt."""

    def __init__(self, prompt: list[int], params: BeamSearchParams, eos: Collection[int]):
        self._params = params
        self._eos = eos
        self._start = len(prompt)
        self._finished: list[tuple[float, BeamSearchSequence]] = []
        self.running = [BeamSearchSequence(prompt)]
        """The best first; empty once the search has ended."""

    def extend(self, tables: Sequence[Mapping[int, float]], kept: Sequence[TokenTable]) -> None:
        """Move on by a token: log-probabilities of the next ones of each running hypothesis, and
        what is told of them."""
        width = self._params.beam_width
        found = [
            (beam.cum_logprob + logprob, place, token)
            for place, (beam, table) in enumerate(zip(self.running, tables, strict=True))
            for token, logprob in table.items()
        ]
        found.sort(key=lambda entry: (-entry[0], *entry[1:]))
        length = len(self.running[0].tokens) + 1 - self._start
        running = []
        for rank, (total, place, token) in enumerate(found[: candidates(self._params, self._eos)]):
            beam = self.running[place]
            longer = BeamSearchSequence([*beam.tokens, token], [*beam.logprobs, kept[place]], total)
            if token in self._eos:
                longer.finish_reason, longer.stop_reason = "stop", token
            elif length == self._params.max_tokens:
                longer.finish_reason = "length"
            if longer.finish_reason is None:
                running.append(longer)
            elif rank < width:
                self._finished.append((self._score(total, length), longer))
        self._finished = sorted(self._finished, key=lambda entry: -entry[0])[:width]
        self.running = running[:width] if self._may_improve(running, length) else []

    def best(self) -> list[BeamSearchSequence]:
        return [beam for _, beam in self._finished]

    def _score(self, total: float, length: int) -> float:
        return float(total / length**self._params.length_penalty)

    def _may_improve(self, running: list[BeamSearchSequence], length: int) -> bool:
        if len(self._finished) < self._params.beam_width or not running:
            return True
        return self._score(running[0].cum_logprob, length) > self._finished[-1][0]


def candidates(params: BeamSearchParams, eos: Collection[int]) -> int:
    """So many that `beam_width` of them go on, whichever end."""
    return max(2, 1 + len(eos)) * params.beam_width


def beam_search(
    prompts: Sequence[list[int]], params: BeamSearchParams, eos: Collection[int], expand: Expand
) -> list[BeamSearchOutput]:
    """The best hypotheses of each prompt; those of all prompts go on together. `text` is empty."""
    eos = () if params.ignore_eos else eos
    searches = [_Search(prompt, params, eos) for prompt in prompts]
    while beams := [beam for search in searches for beam in search.running]:
        tables = iter(expand(beams, candidates(params, eos)))
        for search in searches:
            kept = [next(tables) for _ in search.running]
            if kept:
                logprobs = [
                    {token: entry.logprob for token, entry in table.items()} for table in kept
                ]
                search.extend(logprobs, kept)
    return [BeamSearchOutput(search.best()) for search in searches]
