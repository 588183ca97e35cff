"""Places where a text's end stood before, and what they guess."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.core.messages import AddRequest
from pagoda.core.speculation.copying import END, Copied
from pagoda.core.speculation.ngram import NgramProposer
from pagoda.core.speculation.suffix import RecentReplies, SuffixProposer
from pagoda.core.speculation.text_index import LONGEST, TextIndex
from tests.unit.core.fake_runner import make_scheduler

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def requests(*prompts: list[int], **fields: object) -> list:
    """Requests as a scheduler makes them, which only know their prompts."""
    scheduler, _ = make_scheduler(max_model_len=1 << 20, num_blocks=1 << 16)
    for i, prompt in enumerate(prompts):
        scheduler.add(AddRequest(req_id=f"r{i}", prompt_token_ids=prompt, **fields))
    return list(scheduler._requests.values())


def same_length(text: list[int], end: int) -> int:
    """How many tokens in front of `end` are the text's last ones."""
    count = 0
    while count < min(end, LONGEST) and text[end - count - 1] == text[-count - 1]:
        count += 1
    return count


@given(TEXTS, st.lists(st.integers(1, 9)))
def test_the_longest_match_is_found_however_the_text_grew(text, pieces):
    index = TextIndex(text)
    for size in pieces:
        index.extend(min(len(text) - 1, index.end + size))
    index.extend(len(text) - 1)
    match = index.longest(text)
    lengths = {end: same_length(text, end) for end in range(2, len(text))}
    candidates = [end for end in lengths if lengths[end] >= 2][-8:]
    if not candidates:
        assert match is None
        return
    assert match is not None
    assert match.length == lengths[match.end] == max(lengths[end] for end in candidates)
    assert match.end == max(end for end in candidates if lengths[end] == match.length)


def test_a_copy_is_followed_and_ends_where_the_text_differs():
    copied = Copied([1, 2, 3, 4, 5, END, 9, 9], place=2, length=2)
    assert copied.guess(8).token_ids == [3, 4, 5]
    assert copied.follow([3, 4]) and copied.length == 4
    assert copied.guess(8).token_ids == [5]
    assert not copied.follow([5, 9])


def test_a_text_goes_on_beside_its_source_behind_a_changed_token():
    source = list(range(30))
    copied = Copied(source, place=10, length=10)
    assert not copied.follow([10, 11, 99, 13])
    behind = copied.past_change([10, 11, 99, 13], offset=18)
    assert behind.guess(3).token_ids == [14, 15, 16] and behind.length == 1
    assert min(behind.guess(3).evidence) >= 18
    assert behind.past_change([98], 18) is None  # it kept to it for one token only
    assert behind.follow([14, 15]) and behind.past_change([98, 17], 18).guess(1).token_ids == [18]
    assert copied.past_change([10, 99, 98], 18) is None
    assert Copied(source, place=10, length=4).past_change([99], 18) is None
    assert Copied([1, END], place=1, length=9).past_change([5], 18) is None


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(2, 6), st.integers(1, 20))
def test_a_text_that_repeats_itself_is_guessed_to_go_on(period, times, most):
    text = period * (times + 2)
    place = len(text) - len(period)
    guess = Copied(text, place, length=2).guess(most)
    assert guess.token_ids == (period * 20)[:most]
    assert len(guess.evidence) == most


def test_longer_matches_are_better_evidence():
    (req,) = requests([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2])
    proposer = SuffixProposer()
    first = proposer.guess(req, 4)
    assert first.token_ids == [3, 4, 5, 6]
    assert first.evidence == sorted(first.evidence)
    req.token_ids += [3, 4, 5, 6]
    chances = proposer.chances
    assert chances[proposer.guess(req, 1).evidence[0]] > chances[first.evidence[0]]


def test_ngram_wants_as_many_tokens_in_common_as_it_was_told():
    text = [1, 2, 3, 4, 7, 3, 4]
    for shortest, expected in ((2, [7, 3]), (3, [])):
        (req,) = requests(text)
        assert NgramProposer(shortest).guess(req, 2).token_ids == expected


def test_replies_of_others_are_guessed_from_within_a_tenant():
    proposer = SuffixProposer()
    first, second = requests([1] * 3, [9, 20, 21])
    proposer.guess(first, 1)
    first.token_ids += [20, 21, 22, 23, 24]
    proposer.forget(first)
    assert proposer.guess(second, 9).token_ids == [22, 23, 24]
    (salted,) = requests([8, 20, 21], cache_salt="a")
    assert proposer.guess(salted, 9).token_ids == []


def test_the_own_text_comes_before_others_unless_theirs_is_longer():
    proposer = SuffixProposer()
    first, second, third = requests([1], [5, 6, 7, 0, 5, 6], [5, 6, 7, 4, 5, 6])
    proposer.guess(first, 1)
    first.token_ids += [3, 5, 6, 9, 0, 5, 6, 8]
    proposer.forget(first)
    assert proposer.guess(second, 1).token_ids == [8]  # behind 0, 5, 6
    assert proposer.guess(third, 1).token_ids == [7]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 90)), max_size=40))
def test_recent_replies_stay_within_their_bound(replies):
    kept = RecentReplies(200)
    for owner, length in replies:
        kept.add((owner, None), list(range(length)))
        held = [len(index.text) for owned in kept._owners.values() for index in owned]
        assert kept.num_tokens == sum(held) <= 200
    if replies and replies[-1][1]:
        owner, length = replies[-1]
        latest = kept.indexes((owner, None))[0].text
        assert latest[-2] == length - 1


def test_a_predicted_reply_is_guessed_from_its_first_token_on_and_again_behind_a_change():
    (req,) = requests([1, 2, 3], prediction_token_ids=[10, 11, 12, 13, 14, 15, 16])
    proposer = SuffixProposer()
    req.token_ids += [10]
    assert proposer.guess(req, 3).token_ids == [11, 12, 13]
    req.token_ids += [11, 99]
    assert proposer.guess(req, 3).token_ids == [13, 14, 15]
    req.token_ids += [98, 14, 15]  # soon after the last change: found anew
    assert proposer.guess(req, 5).token_ids == [16]
    (other,) = requests([1, 2, 3], prediction_token_ids=[10, 11])
    other.token_ids += [50]
    assert SuffixProposer().guess(other, 3).token_ids == [11]  # it may go on beside


def test_a_long_prompt_is_taken_in_by_slices():
    chance = random.Random(0)
    text = [chance.randrange(1 << 16) for _ in range(20_000)]
    (req,) = requests([*text, *text[:40]])
    proposer = SuffixProposer()
    proposer.guess(req, 4)
    assert proposer._texts["r0"].index.end < 5000
    assert proposer.guess(req, 4).token_ids == text[40:44]  # its place is among the first


@pytest.mark.parametrize("proposer", [NgramProposer(), SuffixProposer()])
def test_what_ended_is_forgotten(proposer):
    reqs = requests(*[[1, 2, 1, 2]] * 50)
    for req in reqs:
        proposer.guess(req, 2)
        proposer.forget(req)
        proposer.forget(req)
    assert not getattr(proposer, "_texts", None) and not getattr(proposer, "_indexes", None)
