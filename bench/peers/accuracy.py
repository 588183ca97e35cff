"""How far a contender's next-token distribution is from fp32 arithmetic on the same weights.

The texts are what the default model writes at temperature 1: they lead through the states that
serving visits, need no file of texts, and the reference's own uncertainty is in them.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from bench.peers.contenders import REFERENCE
from bench.peers.environments import SetupError
from bench.peers.paths import CACHE, MODELS
from bench.peers.rounds import Outcome, alone
from bench.peers.worker import Worker
from pagoda.weights.files import open_model

_LENGTH = 512
_LOG_P = CACHE / "reference.npy"


def divergences(
    file: str, path: Path, workers: Mapping[str, Worker], num_texts: int, threads: int
) -> dict[str, Outcome]:
    """Per contender one sample: the mean KL divergence in nats, and the share of positions whose
    likeliest token is the reference's. Raises SetupError without a reference."""
    reference = REFERENCE.start(file, threads)
    try:
        texts = _texts(reference, path)[:num_texts]
        totals = {name: {"divergence": 0.0, "agreed": 0, "positions": 0} for name in workers}
        outcomes = {name: Outcome() for name in workers}
        for ids in texts:
            with alone(reference):
                reference.ask("reference", ids=ids, path=str(_LOG_P))
            for name, worker in workers.items():
                if not outcomes[name].error:
                    _add(worker, ids, totals[name], outcomes[name])
    finally:
        reference.close()
        _LOG_P.unlink(missing_ok=True)
    for name, total in totals.items():
        if not outcomes[name].error:
            outcomes[name].samples.append(
                {
                    "kl": total["divergence"] / total["positions"],
                    "agreed": total["agreed"] / total["positions"],
                    "texts": len(texts),
                }
            )
    return outcomes


def _add(worker: Worker, ids: list[int], total: dict[str, float], outcome: Outcome) -> None:
    try:
        with alone(worker):
            answer = worker.ask("divergence", ids=ids, reference=str(_LOG_P))
    except SetupError as error:
        outcome.error = str(error)
        return
    for key in total:
        total[key] += answer[key]


def _texts(reference: Worker, path: Path) -> list[list[int]]:
    """20 texts of 512 ids, written once, by the first file that is asked about."""
    kept = MODELS / "texts.json"
    if not kept.is_file():
        first = int(open_model(path).metadata["tokenizer.ggml.bos_token_id"])
        with alone(reference):
            ids = reference.ask("sample", texts=20, tokens=_LENGTH, first=first)["ids"]
        kept.write_text(json.dumps(ids))
    texts: list[list[int]] = json.loads(kept.read_text())
    return texts
