"""What rank 0 tells the ranks that share its model, step by step."""

from typing import Literal

import msgspec

from pagoda.core.plan import StepPlan


class RankSampled(msgspec.Struct, array_like=True, gc=False):
    """What a step sampled."""

    tokens: list[int]
    """One for each row of its logits."""
    faulty: list[int]
    """Those of these rows whose token does not count."""


class RankStep(msgspec.Struct, tag=True):
    """A plan, and what only rank 0 knows: it alone samples, compiles grammars and reads pictures,
    so that no clock or file that ranks see differently can part them."""

    plan: StepPlan
    left_out: list[int] = msgspec.field(default_factory=list)
    """Places of the plan's requests that rank 0 does not compute."""
    sampled: list[RankSampled] = msgspec.field(default_factory=list)
    """What the steps before sampled that are known since the last plan, in their order."""
    whole: list[int] = msgspec.field(default_factory=list)
    """Rows of this step's logits that are gathered; of the others the largest is enough."""
    pictures: list[tuple[str, list[int]]] = msgspec.field(default_factory=list)
    """Content hash and shape of the embeddings that rank 0 sends next, in order."""


class RankCapture(msgspec.Struct, tag=True):
    """All capture steps of this size now: behind the last step, before the next."""

    requests: int
    tokens: int
    prompts: bool = False


class RankBlocks(msgspec.Struct, tag=True):
    """Each rank sends its part of these blocks of the KV cache to rank 0, or gets it."""

    group: int
    blocks: list[int]
    writes: bool


class RankTiles(msgspec.Struct, tag=True):
    """How rank 0 measured that products are best cut; what was captured before is forgotten."""

    rows: list[list[bool | str | int]]
    """As `products.forms.measured` gives them."""


class RankCall(msgspec.Struct, tag=True):
    """What a rank's runner is to do now; the rank says when it is done."""

    method: Literal["sleep", "wake_up", "load_adapter"]
    slot: int = 0
    identity: str = ""
    parts: list[tuple[str, float]] = msgspec.field(default_factory=list)
    """What `load_adapter` takes."""
