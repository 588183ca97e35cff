"""Log-probabilities of chosen and most likely tokens."""

import numpy as np
import numpy.typing as npt
import torch

from pagoda.core.messages import TokenLogprobs
from pagoda.kernels import ops
from pagoda.runtime.device import to_tensor


def token_logprobs(
    logits: torch.Tensor, token_ids: npt.NDArray[np.int64], counts: npt.NDArray[np.int32]
) -> list[TokenLogprobs]:
    """For each row of fp32 logits [rows, vocab]: the token's, and the `counts[row]` best.

    Of equal logits the lower id comes first; the rank counts the tokens that are more likely.
    """
    chunk = ops.rows_at_once(logits)
    result: list[TokenLogprobs] = []
    for start in range(0, len(logits), chunk):
        part = slice(start, start + chunk)
        result += _chunk_logprobs(logits[part], token_ids[part], counts[part])
    return result


def drawn_logprobs(
    logits: torch.Tensor,
    top: torch.Tensor,
    token_ids: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int32],
    params: ops.DrawParams,
) -> list[TokenLogprobs]:
    """As `token_logprobs`, of fp32 logits [rows, vocab] as they were drawn from, each row's maximum
    in fp32 `top` [rows]: -inf for what temperature, min-p, top-k and top-p left out."""
    result = []
    for row, entry in enumerate(token_logprobs(logits, token_ids, counts)):
        one = slice(row, row + 1)
        drawn = to_tensor(token_ids[one], logits.device)
        of_row = ops.DrawParams._make(column[one] for column in params)
        shares = ops.draw_shares(logits[one], top[one], drawn, of_row)[0].log()
        listed = to_tensor(np.array([entry.token_id, *entry.top_ids], np.int64), logits.device)
        chosen, *others = shares[listed].tolist()
        result.append(TokenLogprobs(entry.token_id, chosen, entry.rank, entry.top_ids, others))
    return result


def _chunk_logprobs(
    logits: torch.Tensor, token_ids: npt.NDArray[np.int64], counts: npt.NDArray[np.int32]
) -> list[TokenLogprobs]:
    total = logits.logsumexp(dim=-1)
    chosen = logits.gather(1, to_tensor(token_ids, logits.device)[:, None])
    ranks = (logits > chosen).sum(dim=-1) + 1
    chosen_list = (chosen[:, 0] - total).tolist()
    top = _top_lists(logits, total, counts)
    return [
        TokenLogprobs(token, logprob, rank, *top[row])
        for row, (token, logprob, rank) in enumerate(
            zip(token_ids.tolist(), chosen_list, ranks.tolist(), strict=True)
        )
    ]


def _top_lists(
    logits: torch.Tensor, total: torch.Tensor, counts: npt.NDArray[np.int32]
) -> list[tuple[list[int], list[float]]]:
    """Rows that ask for equally many go together: one with the whole vocabulary is slow."""
    lists: list[tuple[list[int], list[float]]] = [([], []) for _ in range(len(counts))]
    for count in np.unique(counts[counts > 0]).tolist():
        rows = np.flatnonzero(counts == count)
        index = to_tensor(rows, logits.device)
        values, ids = ops.top_tokens(logits[index], count)
        values = values - total[index][:, None]
        for row, *pair in zip(rows.tolist(), ids.tolist(), values.tolist(), strict=True):
            lists[row] = (pair[0], pair[1])
    return lists
