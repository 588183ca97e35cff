"""OutputProcessor over a byte tokenizer: text, stop strings and token counts at every cut."""

import itertools

import pytest

from pagoda.core.messages import RequestDelta, TokenLogprobs
from pagoda.core.sampling import SamplingParams
from pagoda.engine.outputs import CompletionOutput, OutputProcessor
from pagoda.text.parsers.select import parser_for
from pagoda.text.tokenizer import load_tokenizer
from pagoda.weights.files import open_model
from tests.engine.conftest import write_byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    write_byte_tokenizer(folder)
    return load_tokenizer(open_model(folder))


def run(tokenizer, cuts, finish="length", **sampling):
    """Process the pieces of ids in `cuts`, the last with `finish`, as a caller would."""
    processor = OutputProcessor(tokenizer, SamplingParams(max_tokens=None, **sampling), [])
    outputs = []
    for index, ids in enumerate(cuts):
        last = index == len(cuts) - 1
        logprobs = [TokenLogprobs(token, -1.0, 1, [token], [-1.0]) for token in ids]
        delta = RequestDelta(
            req_id="r", token_ids=ids, logprobs=logprobs, finish_reason=finish if last else None
        )
        outputs.append(processor.process(delta))
        if processor.matched_stop:
            break
    return outputs


def text_of(outputs):
    return "".join(output.text for output in outputs)


def all_cuts(ids):
    """Every way to cut ids in two or three pieces."""
    for i, j in itertools.combinations_with_replacement(range(len(ids) + 1), 2):
        yield [ids[:i], ids[i:j], ids[j:]]


def test_text_is_whole_at_every_cut(tokenizer):
    text = "añ🙂b"
    for cuts in all_cuts(tokenizer.encode(text, add_special_tokens=False)):
        outputs = run(tokenizer, cuts)
        assert text_of(outputs) == text
        assert "\ufffd" not in text_of(outputs)


@pytest.mark.parametrize(("include", "expected"), [(False, "one, "), (True, "one, two")])
def test_a_stop_string_at_every_cut(tokenizer, include, expected):
    for cuts in all_cuts(tokenizer.encode("one, two, three", add_special_tokens=False)):
        outputs = run(tokenizer, cuts, stop=["two"], include_stop_str_in_output=include)
        assert text_of(outputs) == expected
        assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == ("stop", "two")
        tokens = [token for output in outputs for token in output.token_ids]
        assert tokenizer.decode(tokens) == "one, two"
        assert all(len(o.logprobs) == len(o.token_ids) for o in outputs)


def test_a_stop_string_that_only_begins_is_text_after_all(tokenizer):
    ids = tokenizer.encode("one tw", add_special_tokens=False)
    assert text_of(run(tokenizer, [ids], stop=["two"])) == "one tw"


def test_each_token_s_place_in_the_text_is_known_at_every_cut(tokenizer):
    ids = tokenizer.encode("añ🙂b, two", add_special_tokens=False)
    ends = [1, 1, 2, 2, 2, 2, 3, 4, 5, 6, 7, 8, 9]
    for cuts in all_cuts(ids):
        for stop in ([], ["zz"]):
            outputs = run(tokenizer, cuts, logprobs=0, stop=stop)
            assert [end for output in outputs for end in output.text_ends] == ends
    (output,) = run(tokenizer, [ids], finish="stop", logprobs=0)
    assert output.text_ends == ends[:-1]  # the last one ended the reply
    (output,) = run(tokenizer, [ids])
    assert output.text_ends == []  # nobody asked


def test_the_stop_token_is_no_text(tokenizer):
    ids = tokenizer.encode("abc", add_special_tokens=False)
    assert text_of(run(tokenizer, [ids[:2], ids[2:]], finish="stop")) == "ab"
    kept = run(tokenizer, [ids], finish="stop", include_stop_str_in_output=True)
    assert text_of(kept) == "abc"
    assert kept[0].token_ids == ids


def test_stop_strings_wait_for_min_tokens(tokenizer):
    ids = tokenizer.encode("xxabxx", add_special_tokens=False)
    assert text_of(run(tokenizer, [[token] for token in ids], stop=["x"], min_tokens=3)) == "xxab"


def test_without_detokenization_there_is_no_text(tokenizer):
    outputs = run(tokenizer, [[1, 2, 3]], detokenize=False)
    assert text_of(outputs) == "" and outputs[0].token_ids == [1, 2, 3]


def test_an_error_passes_through(tokenizer):
    processor = OutputProcessor(tokenizer, SamplingParams(), [])
    output = processor.process(RequestDelta(req_id="r", finish_reason="error", error="no"))
    assert (output.finish_reason, output.error, output.text) == ("error", "no", "")


def test_a_parsed_reply_has_thought_answer_and_calls():
    text = '<think>Hm.</think>Well.<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    output = CompletionOutput(0, text=text)
    output.parse(parser_for(None, "hermes", "hermes")("", [{"function": {"name": "f"}}]))
    assert (output.reasoning, output.content, output.text) == ("Hm.", "Well.", text)
    assert [(call.name, call.arguments) for call in output.tool_calls] == [("f", '{"a": 1}')]


def test_markup_is_shown_where_other_special_tokens_are_skipped(tokenizer):
    special = sorted(tokenizer.special_ids)
    assert len(special) > 1
    delta = RequestDelta(
        req_id="r", token_ids=[*tokenizer.encode("a", add_special_tokens=False), *special]
    )
    shown = OutputProcessor(tokenizer, SamplingParams(), [], frozenset(special[:1]))
    assert shown.process(delta).text == "a" + tokenizer.token_text(special[0])
    assert OutputProcessor(tokenizer, SamplingParams(), []).process(delta).text == "a"
