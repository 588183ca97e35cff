import os
import signal
import subprocess
import sys
import textwrap
import threading
import traceback

import pytest

from pagoda import LLM, SamplingParams
from pagoda.base.errors import (
    CheckpointError,
    ConfigError,
    ContextLengthError,
    RequestError,
    SourceError,
)

GREEDY = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm(tiny_chat_model):
    return LLM(
        model=str(tiny_chat_model), load_format="dummy", dtype="float32", device="cpu",
        threads=1, num_gpu_blocks_override=129, trust_remote_code=False,
    )  # fmt: skip


def assert_idle(llm):
    stats = llm._core.stats()
    assert stats.num_running == stats.num_waiting == 0
    assert stats.blocks_free == stats.blocks_total


def test_results_come_in_order_with_vllms_names(llm):
    prompts = ["one", "and two", {"prompt_token_ids": [65, 66]}, {"prompt": "four"}]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=6, **GREEDY))
    assert [o.prompt for o in outputs] == ["one", "and two", None, "four"]
    assert outputs[2].prompt_token_ids == [65, 66]
    for output in outputs:
        completion = output.outputs[0]
        assert output.finished and len(completion.token_ids) == 6
        assert completion.finish_reason == "length" and completion.stop_reason is None
        assert completion.index == 0 and completion.logprobs is None
        assert completion.cumulative_logprob is None
        assert completion.text == llm.get_tokenizer().decode(
            completion.token_ids, skip_special_tokens=True
        )
    assert len({o.request_id for o in outputs}) == 4
    alone = llm.generate("and two", SamplingParams(max_tokens=6, **GREEDY))
    assert alone[0].outputs[0].token_ids == outputs[1].outputs[0].token_ids
    assert_idle(llm)


def test_a_list_of_parameters_n_and_seeds(llm):
    params = [
        SamplingParams(max_tokens=3, n=2, seed=1, temperature=1.0, ignore_eos=True),
        SamplingParams(max_tokens=5, **GREEDY),
    ]
    first, second = llm.generate(["a", "b"], params)
    assert [c.index for c in first.outputs] == [0, 1]
    assert [len(c.token_ids) for c in first.outputs] == [3, 3]
    assert len(second.outputs[0].token_ids) == 5
    again = llm.generate("a", params[0])[0]
    assert [c.token_ids for c in again.outputs] == [c.token_ids for c in first.outputs]
    sampling = SamplingParams(max_tokens=3, seed=2, temperature=1.0, ignore_eos=True)
    assert llm.generate("a", sampling)[0].outputs[0].token_ids == first.outputs[1].token_ids


def test_logprobs_are_tables_by_token(llm):
    sampling = SamplingParams(max_tokens=4, logprobs=3, prompt_logprobs=2, **GREEDY)
    output = llm.generate("hello", sampling)[0]
    completion = output.outputs[0]
    assert len(completion.logprobs) == 4
    for token, table in zip(completion.token_ids, completion.logprobs, strict=True):
        assert next(iter(table)) == token and len(table) == 3
        assert sorted(entry.rank for entry in table.values()) == [1, 2, 3]
        assert table[token].logprob == max(entry.logprob for entry in table.values()) < 0
    chosen = zip(completion.token_ids, completion.logprobs, strict=True)
    total = sum(table[token].logprob for token, table in chosen)
    assert completion.cumulative_logprob == pytest.approx(total)
    assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == 5
    assert all(
        token in table and len(table) in (2, 3)
        for token, table in zip(
            output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True
        )
    )


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_ends_the_text_there(llm, include):
    allowed = llm.get_tokenizer().encode("abcdefghijklmnop", add_special_tokens=False)
    base = {**GREEDY, "allowed_token_ids": allowed, "repetition_penalty": 2.0}
    free = llm.generate("x", SamplingParams(max_tokens=40, **base))[0].outputs[0].text
    assert len(free) == 40
    stop = free[10:13]
    sampling = SamplingParams(
        max_tokens=40, stop=[stop], include_stop_str_in_output=include, **base
    )
    stopped = llm.generate("x", sampling)[0].outputs[0]
    assert stopped.text == free[: free.index(stop) + (3 if include else 0)]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)
    assert len(stopped.token_ids) == free.index(stop) + 3
    assert_idle(llm)


def test_a_stop_token_is_a_token_and_no_text(llm):
    free = llm.generate("x", SamplingParams(max_tokens=8, **GREEDY))[0].outputs[0]
    token = free.token_ids[3]
    first = free.token_ids.index(token)
    sampling = SamplingParams(max_tokens=8, stop_token_ids=[token], **GREEDY)
    stopped = llm.generate("x", sampling)[0].outputs[0]
    assert stopped.token_ids == free.token_ids[: first + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", token)
    assert stopped.text == llm.get_tokenizer().decode(
        stopped.token_ids[:-1], skip_special_tokens=True
    )


def test_chat_renders_the_template(llm):
    tokenizer = llm.get_tokenizer()
    messages = [{"role": "user", "content": "hi"}]
    sampling = SamplingParams(max_tokens=2, **GREEDY)
    one = llm.chat(messages, sampling)[0]
    assert one.prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert one.prompt_token_ids == tokenizer.encode(one.prompt, add_special_tokens=False)
    (reply,) = one.outputs
    assert (reply.content, reply.reasoning, reply.tool_calls) == (reply.text, None, [])
    both = llm.chat([messages, [*messages, *messages]], sampling)
    assert len(both) == 2 and both[1].prompt.count("hi") == 2
    bare = llm.chat(messages, sampling, add_generation_prompt=False)[0]
    assert bare.prompt == "<|im_start|>user\nhi<|im_end|>\n"
    own = llm.chat(
        messages, sampling, chat_template="{{ mood }}{{ messages[0].content }}",
        chat_template_kwargs={"mood": "oh "},
    )[0]  # fmt: skip
    assert own.prompt == "oh hi"


def test_defaults_come_from_the_generation_config(llm):
    params = llm.get_default_sampling_params()
    assert (params.temperature, params.top_k, params.max_tokens) == (0.5, 7, 16)


@pytest.mark.parametrize(
    ("prompts", "sampling", "error"),
    [
        (["fine", "x" * 513], None, ContextLengthError),
        (["fine", ""], None, RequestError),
        (["fine", [1, 999]], None, RequestError),
        (["fine", 7], None, RequestError),
        (["fine", {"text": "x"}], None, RequestError),
        (["fine"], [SamplingParams(), SamplingParams()], RequestError),
        (["fine", b"x"], None, RequestError),
        (7, None, RequestError),
        (["fine"], {"temperature": 0}, RequestError),
        (["fine"], "greedy", RequestError),
    ],
)
def test_one_bad_prompt_stops_all_before_anything_runs(llm, prompts, sampling, error):
    steps = llm._core.stats().num_steps
    with pytest.raises(error) as caught:
        llm.generate(prompts, sampling)
    assert isinstance(caught.value, ValueError)
    assert llm._core.stats().num_steps == steps
    assert_idle(llm)


def test_max_tokens_beyond_the_context_end_there(llm):
    output = llm.generate("x" * 500, SamplingParams(max_tokens=100, **GREEDY))[0].outputs[0]
    assert len(output.token_ids) == 12 and output.finish_reason == "length"


def test_an_empty_batch(llm):
    assert llm.generate([]) == []


def test_ctrl_c_aborts_and_leaves_a_usable_engine(llm):
    interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        while True:
            llm.generate(["a", "b"], SamplingParams(max_tokens=400, **GREEDY))
    interrupt.join()
    assert_idle(llm)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert (
        len(llm.generate("c", SamplingParams(max_tokens=4, **GREEDY))[0].outputs[0].token_ids) == 4
    )


def test_unknown_arguments_name_the_nearest():
    with pytest.raises(ConfigError, match="'max_model_length'; did you mean 'max_model_len'"):
        LLM(model="nowhere", max_model_length=5)
    with pytest.raises(ConfigError, match="max_num_seqs"):
        LLM(model="nowhere", max_num_seqs=2.5)


def frames(error):
    """Functions of the traceback, and whether an error stands behind it."""
    found = traceback.TracebackException.from_exception(error)
    return [frame.name for frame in found.stack], found.__cause__ or (
        None if found.__suppress_context__ else found.__context__
    )


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"model": "nowhere"}, SourceError, "no file or folder 'nowhere'"),
        ({"model": "smollm2", "max_len": 5}, ConfigError, "did you mean 'max_model_len'"),
        ({"model": 5}, ConfigError, "Expected `str`"),
        ({"model": "{folder}"}, CheckpointError, "not valid JSON"),
    ],
)
def test_a_load_that_fails_shows_the_call_alone(options, error, words, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"architectures":')
    name = options["model"]
    model = name.format(folder=tmp_path) if isinstance(name, str) else name
    with pytest.raises(error, match=words) as caught:
        LLM(**options | {"model": model})
    names, behind = frames(caught.value)
    assert names[1:] == ["__init__"] and behind is None
    monkeypatch.setenv("PAGODA_DEBUG", "1")
    with pytest.raises(error) as caught:
        LLM(**options | {"model": model})
    assert len(frames(caught.value)[0]) > 2


def test_a_script_leaves_nothing_behind(tiny_chat_model):
    """Walk-through E: torch and vLLM's names, then a plain exit."""
    script = f"""
        import threading
        from pagoda import LLM, SamplingParams
        llm = LLM(model={str(tiny_chat_model)!r}, tokenizer=None, dtype="half", max_model_len=64,
                  trust_remote_code=True, load_format="dummy", tensor_parallel_size=1)
        outputs = llm.generate(["hi"], SamplingParams(temperature=0.6, top_p=0.95, max_tokens=5))
        print(repr(outputs[0].prompt), len(outputs[0].outputs[0].token_ids))
        own = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
        print(own)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["'hi' 5", "[]"]
    assert done.stderr.count("trust_remote_code") == 1
