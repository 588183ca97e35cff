from hypothesis import given
from hypothesis import strategies as st

from pagoda.core.kvcache.block_hash import MAX_TOKEN_ID, BlockHashes
from pagoda.core.messages import AddRequest, MediaItem


@given(
    tokens=st.lists(st.integers(0, MAX_TOKEN_ID), max_size=40),
    cuts=st.lists(st.integers(0, 10), max_size=5),
)
def test_hashes_do_not_depend_on_when_tokens_became_known(tokens, cuts):
    total = len(tokens) // 4
    steps = BlockHashes(4)
    for count in sorted(min(cut, total) for cut in cuts):
        steps.extend(tokens[: 4 * count + 1], count)
    assert steps.extend(tokens, total) == BlockHashes(4).extend(tokens, total)
    assert len(steps.hashes) == total


def test_hash_covers_everything_before():
    base = BlockHashes(4).extend(list(range(12)), 3)
    for changed in range(12):
        tokens = [99 if i == changed else i for i in range(12)]
        other = BlockHashes(4).extend(tokens, 3)
        same = [a == b for a, b in zip(base, other, strict=True)]
        assert same == [block < changed // 4 for block in range(3)]


def test_equal_blocks_at_different_places_differ():
    hashes = BlockHashes(4).extend([7] * 12, 3)
    assert len(set(hashes)) == 3


def test_salt_adapter_and_media_enter_the_hash():
    tokens = list(range(12))
    image = MediaItem("image", 5, 2, "payload")
    variants = [
        {},
        {"cache_salt": "x"},
        {"adapter": "x"},
        {"cache_salt": "x", "adapter": "x"},
        {"cache_salt": ""},
        {"media": [image]},
        {"media": [MediaItem("other", 5, 2, "payload")]},
        {"media": [MediaItem("image", 6, 2, "payload")]},
        {"media": [image, MediaItem("image", 7, 1, "payload")]},
    ]
    last = set()
    for fields in variants:
        request = AddRequest(req_id="r", prompt_token_ids=tokens, **fields)
        last.add(BlockHashes.of(request, 4).extend(tokens, 3)[-1])
    assert len(last) == len(variants)
    moved = MediaItem("image", 5, 2, "elsewhere")
    assert BlockHashes(4, media=[moved]).extend(tokens, 3) == BlockHashes(4, media=[image]).extend(
        tokens, 3
    ), "where the bytes lie says nothing about them"
