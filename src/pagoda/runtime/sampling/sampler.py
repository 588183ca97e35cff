"""From logits to tokens."""

import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from pagoda.core.messages import TokenLogprobs
from pagoda.kernels import ops
from pagoda.runtime.block_table import Ints
from pagoda.runtime.device import to_tensor
from pagoda.runtime.profile import StepTimes
from pagoda.runtime.sampling.grammar import apply_grammars
from pagoda.runtime.sampling.logprobs import drawn_logprobs, token_logprobs
from pagoda.runtime.sampling.near_top import keep_near_top
from pagoda.runtime.sampling.params import Needs
from pagoda.runtime.sampling.penalties import apply_penalties
from pagoda.runtime.sampling.rules import apply_rules
from pagoda.runtime.sampling.speech import apply_speech
from pagoda.runtime.states import Fault, RequestStates

# What changes logits, and with them the largest, by what was generated before.
CHANGES = Needs.RULES | Needs.PENALTIES | Needs.GRAMMAR | Needs.CHAIN | Needs.SPEECH
NOT_A_NUMBER = Fault(
    "The model's output for this request is not a number: the weights or the cache may be "
    "damaged, or the dtype too narrow; try --dtype float32."
)
NONE_LEFT = Fault(
    "No token is left to choose: allowed_token_ids, bad_words, min_tokens, logit_bias and the "
    "structure asked for together forbid all of them; relax one.",
    bad_request=True,
)


@dataclass
class Sampled:
    """One entry per logits row; `faults` and `logprobs` only for the rows that have them."""

    tokens: Ints
    faults: dict[int, Fault]
    logprobs: dict[int, TokenLogprobs]

    def replace(self, rows: Ints, chosen: "Sampled") -> None:
        """Take what was `chosen` of these rows, in their order."""
        self.tokens[rows] = chosen.tokens
        places = rows.tolist()
        others = {row: fault for row, fault in self.faults.items() if row not in places}
        self.faults = others | {places[i]: fault for i, fault in chosen.faults.items()}
        self.logprobs |= {places[i]: entry for i, entry in chosen.logprobs.items()}


@dataclass
class FirstMax:
    """The largest logit of each row and its token, as `ops.first_max` gives them."""

    values: torch.Tensor
    ids: torch.Tensor

    @cached_property
    def arrays(self) -> tuple[npt.NDArray[np.float32], Ints]:
        """Both on the host; those of a CPU share the tensors' memory."""
        return self.values.cpu().numpy(), self.ids.cpu().numpy()

    def put(self, rows: Ints, chosen: "FirstMax") -> None:
        """Take what was `chosen` of these rows, in their order."""
        index = to_tensor(rows, self.ids.device)
        self.values[index], self.ids[index] = chosen.values, chosen.ids


def most_likely(greedy: FirstMax) -> Sampled:
    """The tokens of rows that need nothing else."""
    values, tokens = greedy.arrays
    return Sampled(tokens, row_faults(values), {})


def sample(
    logits: torch.Tensor,
    rows: Ints,
    positions: Ints,
    states: RequestStates,
    greedy: FirstMax | None = None,
    times: StepTimes | None = None,
) -> Sampled:
    """Choose the token at `positions[i]` of the request in `rows[i]` from fp32 logits[i].

    `greedy` is known where a program computed it. Changes `logits` and `greedy`. Order: what cannot
    stand there in a sound's text is left out; raw log-probabilities are kept aside (unless those of
    the draw are wanted); rules, penalties, grammars change the logits; then greedy, or
    top-n-sigma, temperature, min-p, top-k, top-p and the draw. A row with a chain has that between
    grammars and the draw, and its penalties are in it. A step does only what one of its rows needs.
    """
    flags = states.params["flags"][rows]
    _speech(logits, rows, positions, states)
    wanted = flags & (Needs.LOGPROBS | Needs.SHARES)
    reporting = np.flatnonzero(wanted == Needs.LOGPROBS)
    raw = logits[to_tensor(reporting, logits.device)] if len(reporting) else None
    best, broken = _choose(logits, rows, positions, states, greedy, times)
    top, chosen = best.arrays
    logprobs = {}
    if raw is not None:
        counts = states.params["logprobs"][rows[reporting]]
        entries = token_logprobs(raw, chosen[reporting], counts)
        logprobs = dict(zip(reporting.tolist(), entries, strict=True))
    drawn = np.flatnonzero(wanted == Needs.LOGPROBS | Needs.SHARES)
    if len(drawn):
        index = to_tensor(drawn, logits.device)
        params = states.params[rows[drawn]]
        logprobs |= zip(
            drawn.tolist(),
            drawn_logprobs(
                logits[index], best.values[index], chosen[drawn], params["logprobs"],
                _draw_params(params, positions[drawn]),
            ),
            strict=True,
        )  # fmt: skip
    return Sampled(chosen, row_faults(top) | broken, logprobs)


def choose(
    logits: torch.Tensor,
    rows: Ints,
    positions: Ints,
    states: RequestStates,
    greedy: FirstMax | None = None,
    times: StepTimes | None = None,
) -> tuple[FirstMax, dict[int, Fault]]:
    """As `sample`, without waiting for the device: the tokens, and what grammars found wrong."""
    _speech(logits, rows, positions, states)
    return _choose(logits, rows, positions, states, greedy, times)


def _choose(
    logits: torch.Tensor,
    rows: Ints,
    positions: Ints,
    states: RequestStates,
    greedy: FirstMax | None,
    times: StepTimes | None,
) -> tuple[FirstMax, dict[int, Fault]]:
    params = states.params[rows]
    needs = int(np.bitwise_or.reduce(params["flags"]))
    if needs & Needs.RULES:
        _rules(logits, rows, positions, states)
    if needs & Needs.PENALTIES:
        _penalties(logits, rows, positions, states)
    broken = {}
    if needs & Needs.GRAMMAR:
        begun = time.perf_counter()
        flagged = np.flatnonzero(params["flags"] & Needs.GRAMMAR)
        broken = apply_grammars(logits, _triples(flagged, rows, positions), states)
        if times is not None:
            times.add("masks", time.perf_counter() - begun)
    if needs & Needs.CHAIN:
        _chains(logits, rows, positions, states)
    best = greedy
    if best is None or needs & CHANGES:
        best = FirstMax(*ops.first_max(logits))
    if needs & Needs.RANDOM:
        keep_near_top(logits, best.values, params["top_n_sigma"])
        ops.draw(best.ids, logits, best.values, _draw_params(params, positions))
    return best, broken


def _draw_params(params: np.ndarray, positions: Ints) -> ops.DrawParams:
    """The columns of records of `states.params` that say how to draw."""
    columns = {name: params[name] for name in ops.DrawParams._fields if name != "position"}
    return ops.DrawParams(**columns, position=positions)


def _speech(logits: torch.Tensor, rows: Ints, positions: Ints, states: RequestStates) -> None:
    if not states.speech:
        return
    flagged = np.flatnonzero(states.params["flags"][rows] & Needs.SPEECH)
    for i, row, position in _triples(flagged, rows, positions):
        apply_speech(logits[i], states.speech[row], states.output_before(row, position))


def _rules(logits: torch.Tensor, rows: Ints, positions: Ints, states: RequestStates) -> None:
    flagged = np.flatnonzero(states.params["flags"][rows] & Needs.RULES)
    apply_rules(
        logits,
        (
            (i, states.rules[row], states.output_before(row, position))
            for i, row, position in _triples(flagged, rows, positions)
        ),
    )


def _chains(logits: torch.Tensor, rows: Ints, positions: Ints, states: RequestStates) -> None:
    flagged = np.flatnonzero(states.params["flags"][rows] & Needs.CHAIN)
    for i, row, position in _triples(flagged, rows, positions):
        record = states.params[row : row + 1]

        def penalize(
            one: torch.Tensor, row: int = row, position: int = position, record: np.ndarray = record
        ) -> None:
            entry = (0, states.counts[row], states.drafts_before(row, position))
            apply_penalties(one, [entry], record)

        def draw(one: torch.Tensor, position: int = position, record: np.ndarray = record) -> int:
            top, ids = ops.first_max(one)
            ops.draw(ids, one, top, _draw_params(record, np.array([position])))
            return int(ids[0])

        states.chains[row].apply(logits[i], position, states.token_ids[row, :position],
                                 penalize, draw)  # fmt: skip


def _penalties(logits: torch.Tensor, rows: Ints, positions: Ints, states: RequestStates) -> None:
    wanted = states.params["flags"][rows] & (Needs.PENALTIES | Needs.CHAIN)
    flagged = np.flatnonzero(wanted == Needs.PENALTIES)
    apply_penalties(
        logits,
        (
            (i, states.counts[row], states.drafts_before(row, position))
            for i, row, position in _triples(flagged, rows, positions)
        ),
        states.params[rows],
    )


def _triples(flagged: Ints, rows: Ints, positions: Ints) -> list[tuple[int, int, int]]:
    columns = (flagged.tolist(), rows[flagged].tolist(), positions[flagged].tolist())
    return list(zip(*columns, strict=True))


def row_faults(top: np.ndarray) -> dict[int, Fault]:
    """Rows without a token to choose: `top` is each row's largest logit, NaN if it has one."""
    finite = np.isfinite(top)
    if finite.all():
        return {}
    wrong = np.flatnonzero(~finite).tolist()
    return {row: NONE_LEFT if np.isneginf(top[row]) else NOT_A_NUMBER for row in wrong}
