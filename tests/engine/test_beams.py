"""Beam search of `LLM`, against transformers'."""

import pytest
import torch

from pagoda import LLM, BeamSearchParams
from pagoda.base.errors import ContextLengthError, RequestError
from tests.engine.conftest import write_byte_tokenizer
from tests.models import tiny

PROMPTS = [[65, 66, 67], [5, 9, 40, 41, 200, 7], [99]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("beams")
    model = tiny.make("qwen3", vocab_size=260, head_dim=16, max_position_embeddings=128)
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    llm = LLM(str(folder), device="cpu", threads=1, dtype="float32", max_model_len=64)
    return model, llm


def reference(model, prompt, params: BeamSearchParams, eos) -> list[list[int]]:
    with torch.inference_mode():
        found = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=params.beam_width, num_return_sequences=params.beam_width, do_sample=False,
            max_new_tokens=params.max_tokens, length_penalty=params.length_penalty,
            early_stopping=False, eos_token_id=eos, pad_token_id=259,
        )  # fmt: skip
    return found.tolist()


@pytest.mark.parametrize("width", [1, 3, 5])
@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.0])
def test_the_best_are_those_of_transformers(pair, width: int, penalty: float, monkeypatch) -> None:
    """With an end that is likely, so that hypotheses end at different lengths."""
    model, llm = pair
    params = BeamSearchParams(width, 9, length_penalty=penalty)
    likely = model(torch.tensor([PROMPTS[0]])).logits[0, -1].argsort(descending=True).tolist()
    eos = sorted(likely[1:4])
    monkeypatch.setattr(llm.get_tokenizer(), "eos_token_ids", frozenset(eos))
    outputs = llm.beam_search(PROMPTS, params)
    ended = 0
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        found = [sequence.tokens for sequence in output.sequences]
        for sequence, expected in zip(
            output.sequences, reference(model, prompt, params, eos), strict=True
        ):
            expected = expected[: len(sequence.tokens)] + [
                token for token in expected[len(sequence.tokens) :] if token != 259
            ]
            assert sequence.tokens == expected, (found, expected)
            assert (sequence.finish_reason == "stop") == (sequence.tokens[-1] in eos)
            total = sum(
                table[token].logprob
                for token, table in zip(
                    sequence.tokens[len(prompt) :], sequence.logprobs, strict=True
                )
            )
            assert sequence.cum_logprob == pytest.approx(total)
            assert sequence.text == llm.get_tokenizer().decode(
                sequence.tokens, skip_special_tokens=True
            )
            ended += sequence.finish_reason == "stop"
    assert width == 1 or penalty > 0 or ended


def test_a_search_ends_at_the_contexts_end(pair) -> None:
    _, llm = pair
    (output,) = llm.beam_search([1] * 60, BeamSearchParams(2, 100, ignore_eos=True))
    assert [len(sequence.tokens) for sequence in output.sequences] == [64, 64]
    with pytest.raises(ContextLengthError):
        llm.beam_search([1] * 64, BeamSearchParams(2, 4))


@pytest.mark.parametrize(
    "bad", [{"beam_width": 0}, {"beam_width": 257}, {"max_tokens": 0}, {"temperature": 0.5}]
)
def test_bad_parameters(bad) -> None:
    with pytest.raises(RequestError, match=next(iter(bad))):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, **bad})
