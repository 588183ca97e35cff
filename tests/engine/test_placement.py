"""Which bundles are asked of Ray, and which rank takes which."""

import pytest

from pagoda.config.engine import ParallelConfig
from pagoda.engine.ranks.placement import Node, Wanted, blocks_of, split_stages


def cluster(*gpus: int) -> list[Node]:
    return [
        Node(name, f"10.0.0.{i}", {"GPU": n})
        for i, (name, n) in enumerate(zip("abcd", gpus, strict=False))
    ]


def wanted(tensor: int, stages: int) -> Wanted:
    return Wanted(ParallelConfig(tensor, stages), "GPU")


@pytest.mark.parametrize(
    ("tensor", "stages", "gpus", "bundles"),
    [
        (2, 2, (2, 2), [2, 2]),
        (2, 2, (3, 2), [2, 2]),
        (2, 2, (4,), [2, 2]),
        # No two stages of 2 fit whole, or none on the engine's own node.
        (2, 2, (3, 1), [1, 1, 1, 1]),
        (2, 1, (1, 2), [1, 1]),
        (1, 3, (1, 2), [1, 1, 1]),
    ],
)
def test_a_stage_is_a_bundle_where_nodes_have_room(tensor, stages, gpus, bundles):
    asked = wanted(tensor, stages).bundles(cluster(*gpus), "a")
    assert asked == [{"GPU": float(count)} for count in bundles]


def test_ranks_of_a_node_follow_each_other():
    ask = wanted(2, 3)
    places = ["b", "a", "c", "c", "b", "c"]
    slots = ask.slots([{"GPU": 1.0}] * 6, places)
    assert [places[slot] for slot in slots] == ["b", "b", "c", "c", "c", "a"]
    assert slots[0] == 0 and sorted(slots) == list(range(6))
    assert ask.slots([{"GPU": 2.0, "CPU": 1.0}] * 3, ["b", "a", "b"]) == [0, 0, 2, 2, 1, 1]
    assert len(ask.slots([{"GPU": 1.0}] * 4, places[:4])) == 4, "too few for six ranks"


def test_what_is_missing():
    ask = wanted(2, 2)
    assert ask.missing(cluster(2, 2), "a") == ""
    assert ask.missing(cluster(1, 2), "a") == (
        "--tensor-parallel-size 2 times --pipeline-parallel-size 2 needs 4 GPUs of Ray, and its "
        "cluster has: 1 on node 10.0.0.0, 2 on node 10.0.0.1. Lower it, or add nodes (`ray start`)."
    )
    assert "1 of them on the engine's own node 10.0.0.0, and" in ask.missing(cluster(0, 8), "a")
    assert ask.missing(cluster(0, 8)) == ""


def test_equal_blocks_of_ranks():
    assert blocks_of("aabb") == 2 and blocks_of("aaaa") == 4 and blocks_of("ab") == 1
    assert blocks_of("abba") == blocks_of("abb") == blocks_of("aab") == 1


def test_stages_that_are_cut_by_nodes():
    parallel = ParallelConfig(2, 2)
    assert split_stages("aabb", parallel) == []
    assert split_stages("aaab", parallel) == [1]
