"""Sampled tokens stay in their requests' grammars, and other requests are not touched."""

import msgspec
import pytest

from pagoda.core.grammar import Grammars, Vocabulary

EOS = 256


@pytest.fixture
def grammars() -> Grammars:
    tokens = [bytes([byte]) for byte in range(256)] + [b"<eos>"]
    vocabulary = Vocabulary(tokens, [EOS], [EOS], lambda text: list(text.encode()))
    return Grammars(lambda: vocabulary, 300)


@pytest.fixture
def follow(make_request):
    """A request whose output follows a grammar."""

    def follow(req_id, grammar, **sampling):
        request = make_request(req_id, eos_token_ids=[EOS], **sampling)
        return msgspec.structs.replace(request, grammar=grammar)

    return follow


NUMBERS = 'start: /[0-9]{1,40}/ ("," /[0-9]{1,40}/)*\n'
WORD = 'start: "pagoda"\n'


def text_of(tokens: list[int]) -> str:
    return bytes(token for token in tokens if token < 256).decode()


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 3},
        {"typical_p": 0.9, "xtc_probability": 1.0, "dry_multiplier": 2.0, "seed": 3},
        {"mirostat": 2, "mirostat_tau": 2.0, "seed": 3},
    ],
)
def test_outputs_follow_their_grammars(make_driver, follow, make_request, grammars, sampling):
    alone = make_driver()
    alone.add(make_request("free", **sampling))
    alone.finish(["free"], 12)
    driver = make_driver(grammars=grammars)
    driver.add(
        follow("numbers", NUMBERS, **sampling),
        follow("word", WORD, **sampling),
        make_request("free", **sampling),
    )
    driver.finish(["numbers", "word", "free"], 12)
    assert set(text_of(driver.tokens["numbers"])) <= set("0123456789,")
    assert driver.tokens["word"] == [*b"pagoda", *[EOS] * 6]
    assert driver.tokens["free"] == alone.tokens["free"]


def test_drafts_are_accepted_as_far_as_the_grammar_goes(make_driver, follow, grammars):
    driver = make_driver(grammars=grammars)
    driver.add(follow("word", WORD, temperature=0.0))
    driver.step({"word": 64})
    driver.step({"word": 1}, {"word": list(b"ago")})
    assert text_of(driver.tokens["word"]) == "pagod"
    driver.step({"word": 1}, {"word": list(b"xx")})
    assert text_of(driver.tokens["word"]) == "pagoda"
    driver.step({"word": 1}, {"word": [EOS, EOS]})
    assert driver.tokens["word"][6:8] == [EOS, EOS]


def test_a_preempted_request_goes_on_where_it_was(make_driver, follow, grammars):
    driver = make_driver(grammars=grammars)
    driver.add(follow("word", WORD, temperature=0.0))
    driver.finish(["word"], 3)
    driver.preempt("word")
    driver.finish(["word"], 7)
    assert driver.tokens["word"] == [*b"pagoda", EOS]


def test_a_grammar_and_rules_that_leave_nothing(make_driver, follow, make_request, grammars):
    driver = make_driver(grammars=grammars)
    driver.add(
        follow("stuck", WORD, temperature=0.0, allowed_token_ids=[1, 2]),
        make_request("free", temperature=0.0),
    )
    results = driver.step({"stuck": 64, "free": 64})
    assert "No token is left" in (results["stuck"].error or "")
    assert results["stuck"].bad_request
    assert results["free"].error is None


def test_without_grammars_such_a_request_is_refused(make_driver, follow):
    driver = make_driver()
    driver.add(follow("word", WORD))
    assert "no grammars" in (driver.step({"word": 64})["word"].error or "")


def test_a_grammar_that_is_too_complex_ends_its_own_request(make_driver, follow, grammars):
    # Every split of the text into parts is a parse of it: work grows with each token.
    hostile = follow(
        "hostile", 'start: x\nx: "a" | x x | x x x\n', temperature=0.0, max_tokens=230,
        min_tokens=230,
    )  # fmt: skip
    driver = make_driver(grammars=grammars)
    driver.add(hostile, follow("word", WORD, temperature=0.0))
    for _ in range(230):
        results = driver.step({"hostile": 64, "word": 64})
        if results["hostile"].error is not None:
            break
    assert "too complex" in (results["hostile"].error or "")
    assert results["hostile"].bad_request
    driver.finish(["word"], 6)
    assert text_of(driver.tokens["word"]).startswith("pagoda")
