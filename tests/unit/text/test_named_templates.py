"""`--chat-template NAME`: formats that llama.cpp knows by these names."""

from types import SimpleNamespace
from typing import Any

import pytest

from pagoda.base.errors import ConfigError
from pagoda.text.template.chat import ChatTemplate, load_chat_template
from pagoda.text.template.named import NAMED_TEMPLATES
from tests.unit.text.templates import CHATML, LLAMA3

NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": " Hi "},
    {"role": "user", "content": "Who is it?"},
]


def tokenizer(*bos: int) -> Any:
    return SimpleNamespace(special_token_names=NAMES, encode=lambda text, **_: list(bos))


def loaded(name: str, *bos: int) -> ChatTemplate:
    files: Any = SimpleNamespace(kind="gguf", path="x", metadata={})
    template = load_chat_template(files, tokenizer(*bos), override=name)
    assert template is not None
    return template


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("llama2", "[INST] Be brief.\nHello [/INST] Hi </s>[INST] Who is it? [/INST]"),
        (
            "llama2-sys-strip",
            "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHello [/INST]Hi</s>[INST] Who is it? [/INST]",
        ),
        (
            "mistral-v1",
            " [INST] Be brief.\n\nHello [/INST]  Hi </s> [INST] Who is it? [/INST]",
        ),
        (
            "mistral-v7",
            "[SYSTEM_PROMPT] Be brief.[/SYSTEM_PROMPT][INST] Hello[/INST]  Hi </s>"
            "[INST] Who is it?[/INST]",
        ),
        (
            "gemma",
            "<start_of_turn>user\nBe brief.\n\nHello<end_of_turn>\n<start_of_turn>model\n"
            "Hi<end_of_turn>\n<start_of_turn>user\nWho is it?<end_of_turn>\n<start_of_turn>model\n",
        ),
        (
            "phi3",
            "<|system|>\nBe brief.<|end|>\n<|user|>\nHello<|end|>\n<|assistant|>\n Hi <|end|>\n"
            "<|user|>\nWho is it?<|end|>\n<|assistant|>\n",
        ),
        (
            "deepseek3",
            "Be brief.\n\n<｜User｜>Hello<｜Assistant｜> Hi <｜end▁of▁sentence｜>"
            "<｜User｜>Who is it?<｜Assistant｜>",
        ),
        (
            "chatglm4",
            "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHello<|assistant|>\n Hi "
            "<|user|>\nWho is it?<|assistant|>\n",
        ),
        (
            "vicuna",
            "Be brief.\n\nUSER: Hello\nASSISTANT:  Hi </s>\nUSER: Who is it?\nASSISTANT:",
        ),
    ],
)
def test_a_format_is_written_as_its_models_know_it(name: str, written: str) -> None:
    assert loaded(name).render(CHAT) == written


@pytest.mark.parametrize(("name", "source"), [("chatml", CHATML), ("llama3", LLAMA3)])
def test_a_format_is_that_of_its_models_own_template(name: str, source: str) -> None:
    own = ChatTemplate({"default": source}, NAMES).render(CHAT)
    assert loaded(name).render(CHAT) == own.removeprefix("<s>")


@pytest.mark.parametrize("name", NAMED_TEMPLATES)
def test_every_word_reaches_the_prompt_in_its_order(name: str) -> None:
    template = loaded(name)
    prompt = template.render(CHAT)
    places = [prompt.index(word) for word in ("Be brief.", "Hello", "Hi", "Who is it?")]
    assert places == sorted(places)
    without = template.render(CHAT, add_generation_prompt=False)
    assert prompt.startswith(without)
    assert "Be brief." in template.render(CHAT[:1])
    # What was said before is the beginning of what is said now: the cache lives on that.
    assert template.render(CHAT[:2], add_generation_prompt=False) in prompt


def test_it_begins_with_bos_where_the_tokenizer_adds_one() -> None:
    assert loaded("chatml", 1).render(CHAT).startswith("<s><|im_start|>")
    assert loaded("chatml").render(CHAT).startswith("<|im_start|>")


def test_going_on_with_the_last_turn() -> None:
    prompt = loaded("llama3").render(
        [*CHAT, {"role": "assistant", "content": "It is"}],
        continue_final_message=True,
        add_generation_prompt=False,
    )
    assert prompt.endswith("<|start_header_id|>assistant<|end_header_id|>\n\nIt is")


def test_a_file_of_that_name_comes_first(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gemma").write_text("from a file")
    assert loaded("gemma").render(CHAT) == "from a file"


def test_a_name_that_is_unknown_says_which_are_known() -> None:
    with pytest.raises(ConfigError, match="one of these formats: chatml, llama2"):
        loaded("chatmll")
