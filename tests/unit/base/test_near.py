"""Suggestions for mistyped words."""

import itertools

import pytest

from pagoda.base.near import edit_distance, nearest


@pytest.mark.parametrize(
    ("word", "groups", "meant"),
    [
        ("--prot", [["--port", "--root", "--pro"]], "--port"),
        ("-port", [["--port"]], "--port"),
        ("--portt", [["--sports"], ["--port"]], "--port"),
        ("--hots", [["--host"], ["--hot"]], "--host"),
        ("--max-model", [["--max-model-len", "--max-model-length-x"]], "--max-model-len"),
        ("--max", [["--max-num-seqs"]], None),
        ("bogus", [["verbose"]], None),
        ("generate", [["serve", "complete", "run-batch"]], None),
        ("max_len", [["max_log_words", "max_model_len", "max_log_len"]], "max_model_len"),
        ("gpu-memory", [["gpu-memory-utilization-x"]], "gpu-memory-utilization-x"),
        ("len-max", [["max-model-len"]], None),
        ("x", [["q"]], None),
        ("", [["q"]], None),
    ],
)
def test_the_word_that_was_meant(word, groups, meant):
    assert nearest(word, *groups) == meant


def test_distance_is_the_shortest_way_of_single_edits():
    letters = "abc"

    def neighbours(word):
        for i in range(len(word) + 1):
            yield from (word[:i] + c + word[i:] for c in letters)
            yield from (word[:i] + c + word[i + 1 :] for c in letters if i < len(word))
            if i < len(word):
                yield word[:i] + word[i + 1 :]
            if i + 1 < len(word):
                yield word[:i] + word[i + 1] + word[i] + word[i + 2 :]

    words = ["".join(p) for n in range(4) for p in itertools.product(letters, repeat=n)]
    for word in words:
        one_away = set(neighbours(word)) - {word}
        assert {other for other in words if edit_distance(word, other) == 1} == one_away & set(
            words
        )
