"""Keeps rows of logits to what their requests' grammars allow next."""

from collections.abc import Sequence

import numpy as np
import torch

from pagoda.kernels import ops
from pagoda.runtime.device import to_tensor
from pagoda.runtime.states import Fault, RequestStates

_LEFT = Fault("The output left its grammar; please report this.")


def apply_grammars(
    logits: torch.Tensor, triples: Sequence[tuple[int, int, int]], states: RequestStates
) -> dict[int, Fault]:
    """Set what is not allowed to -inf, in place; faults by row of fp32 logits [rows, vocab].

    Each triple is a row of logits, its request's row and the position that is sampled. A request
    with drafts has several; those behind a draft that its grammar forbids stay as they are, for
    what is sampled there is dropped.
    """
    grammars = states.grammars
    assert grammars is not None  # a request with a grammar was let in
    masks = np.full((len(triples), grammars.mask_words), -1, np.int32)
    faults = {}
    for mask, (i, row, position) in zip(masks, triples, strict=True):
        matcher = states.matchers[row]
        if matcher.follow(states.output_before(row, position)):
            grammars.fill(mask, matcher)
        elif not len(states.drafts_before(row, position)):
            faults[i] = _LEFT
        error = matcher.error()
        if error is not None:
            faults[i] = _too_complex(error)
    rows = np.array([i for i, _, _ in triples], np.int64)
    ops.mask_logits(logits, to_tensor(rows, logits.device), to_tensor(masks, logits.device))
    return faults


def _too_complex(error: str) -> Fault:
    return Fault(
        f"The structure asked for is too complex to follow: {error.splitlines()[0][:300]} "
        "Simplify the schema, regex or grammar.",
        bad_request=True,
    )
