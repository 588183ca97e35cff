"""What came of the tokens that a server guessed, by its own counters."""

from dataclasses import dataclass, field
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

# vLLM's counters, and llama-server's, which are the same under another name.
_PREFIXES = ("vllm:spec_decode_", "llamacpp:spec_decode_")


@dataclass
class Guesses:
    """Since the server started."""

    drafts: int = 0
    """Times that guessed tokens of a request were verified."""
    tokens: int = 0
    accepted: int = 0
    accepted_by_place: dict[int, int] = field(default_factory=dict)


async def read_guesses(http: httpx.AsyncClient) -> Guesses | None:
    """None where the server does not tell."""
    try:
        response = await http.get("/metrics")
        if response.status_code != 200:
            return None
        samples = [
            sample
            for family in text_string_to_metric_families(response.text)
            for sample in family.samples
        ]
    except (httpx.HTTPError, ValueError):
        return None
    for prefix in _PREFIXES:
        found = [sample for sample in samples if sample.name.startswith(prefix)]
        if not found:
            continue
        guesses = Guesses()
        for sample in found:
            count = int(sample.value)
            match sample.name.removeprefix(prefix):
                case "num_drafts_total":
                    guesses.drafts += count
                case "num_draft_tokens_total":
                    guesses.tokens += count
                case "num_accepted_tokens_total":
                    guesses.accepted += count
                case "num_accepted_tokens_per_pos_total":
                    place = int(sample.labels["position"])
                    by_place = guesses.accepted_by_place
                    by_place[place] = by_place.get(place, 0) + count
        return guesses
    return None


def summarize_guesses(before: Guesses | None, after: Guesses | None) -> dict[str, Any]:
    """What was guessed between the two, under vLLM's JSON keys; empty where nothing was."""
    if before is None or after is None or after.drafts <= before.drafts:
        return {}
    drafts, tokens = after.drafts - before.drafts, after.tokens - before.tokens
    accepted = after.accepted - before.accepted
    return {
        "spec_decode_acceptance_rate": 100 * accepted / tokens,
        "spec_decode_acceptance_length": 1 + accepted / drafts,
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": tokens,
        "spec_decode_accepted_tokens": accepted,
        "spec_decode_per_position_acceptance_rates": [
            (count - before.accepted_by_place.get(place, 0)) / drafts
            for place, count in sorted(after.accepted_by_place.items())
        ],
    }
