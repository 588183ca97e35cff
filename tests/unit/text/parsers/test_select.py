"""The chat templates of real models choose their parser, and it reads back what they write."""

import json
import os
from pathlib import Path

import pytest

from pagoda.base.errors import ConfigError
from pagoda.text.parsers.select import detect, parser_for
from pagoda.text.template.chat import ChatTemplate
from tests.unit.text.parsers.parsing import TOOLS, parse

CHOSEN = {
    "gemma4": ["google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved"],
    "hermes": [
        "Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "Qwen-QwQ-32B", "MiMo-VL", "Reka-Edge",
        "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "Bielik-11B-v3.0-Instruct",
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "ibm-granite-granite-4.0",
        "ibm-granite-granite-4.1",
    ],
    "qwen3_coder": [
        "Qwen3-Coder", "Qwen3.5-4B", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "StepFun3.5-Flash",
    ],
    "harmony": ["openai-gpt-oss-120b"],
    "deepseek_r1": [
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
        "llama-cpp-deepseek-r1",
    ],
    "deepseek_v3": ["deepseek-ai-DeepSeek-V3.1"],
    "llama3": [
        "meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct",
        "meta-llama-Llama-3.3-70B-Instruct",
    ],
    "mistral": [
        "Mistral-Small-3.2-24B-Instruct-2506", "mistralai-Ministral-3-14B-Reasoning-2512",
        "mistralai-Mistral-Nemo-Instruct-2407", "unsloth-mistral-Devstral-Small-2507",
    ],
    "seed_oss": ["ByteDance-Seed-OSS"],
    "deepseek_v32": [
        "deepseek-ai-DeepSeek-V3.2", "deepseek-ai-DeepSeek-V4",
        "deepseek-ai-DeepSeek-V4-Flash-0731",
    ],
    "command": ["CohereForAI-c4ai-command-r7b-12-2024-tool_use", "Cohere2MoE"],
    "kimi_k2": ["Kimi-K2-Instruct", "Kimi-K2-Thinking", "moonshotai-Kimi-K2"],
    "lfm2": ["LFM2-8B-A1B", "LFM2.5-8B-A1B", "LFM2.5-Instruct"],
    "none": ["google-gemma-2-2b-it", "microsoft-Phi-3.5-mini-instruct"],
}  # fmt: skip
# Of the generic family, those whose calls it knows.
KNOWN_TO_GENERIC = [
    "GLM-4.6", "GLM-4.7-Flash", "MiniMax-M2", "Spark2.5",
    "poolside-Laguna-S-2.1", "inclusionai-ling-3.0-flash",
    "unsloth-Apriel-1.5", "NVIDIA-Nemotron-Nano-v2",
]  # fmt: skip
# llama.cpp's own forms of a template, which change lists: no sandbox of Jinja's lets them.
CHANGE_LISTS = ("Kimi-K2-Instruct", "Kimi-K2-Thinking")
ARGUMENTS = {"city": 'Mary\'s "Köln"\n{[', "days": 3}
ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "</s>", "<｜end▁of▁sentence｜>", "<turn|>",
    "<|tool_response>", "<|user|>", "<seed:eos>", "[e~[", "<|end_of_text|>", "<|call|>",
    "<|endoftext|>", "<sep>", "</assistant>", "<|end_message|>",
    "<|END_OF_TURN_TOKEN|>", "<SPECIAL_12>",
    "<|observation|>", "<|role_end|>", "<|end|>", "<｜tool▁outputs▁begin｜>",
)  # fmt: skip


@pytest.fixture(scope="module")
def templates(llama_models: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in (llama_models / "templates").glob("*.jinja")}


def test_every_real_template_chooses_its_family(templates):
    expected = {name: family for family, names in CHOSEN.items() for name in names}
    assert expected.keys() <= templates.keys()
    assert {name: detect(text) for name, text in templates.items()} == {
        name: expected.get(name, "generic") for name in templates
    }


@pytest.mark.parametrize("header", ["<|start_header_id|>", "<|header_start|>", "<|im_start|>"])
def test_llamas_of_both_headers_write_the_same_calls(header):
    text = header + 'system: {% if tools %} as {"name": function name, "parameters": ...}'
    assert detect(text) == ("generic" if "im" in header else "llama3")


@pytest.mark.parametrize(
    "name",
    [
        name
        for family in CHOSEN
        for name in CHOSEN[family]
        if family != "none" and name not in CHANGE_LISTS
    ]
    + KNOWN_TO_GENERIC,
)
def test_what_a_template_writes_of_a_call_is_read_back(templates, name):
    """The history's assistant turn, as the template renders it (or, where it leaves calls out, as
    they are spelled for it), is what the model would write."""
    template = ChatTemplate({"default": templates[name]}, {"eos_token": "</s>"})
    user = {"role": "user", "content": "Hi"}
    call = {"name": "weather", "arguments": json.dumps(ARGUMENTS)}
    turn = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_0123456789", "type": "function", "function": call}],
    }
    answer = {"role": "tool", "tool_call_id": "call_0123456789", "content": "SUNNY"}
    form = parser_for(templates[name]).form.calls
    prompt = template.render([user], tools=TOOLS, call_form=form)
    conversation = template.render([user, turn, answer], tools=TOOLS, call_form=form)
    assert "None" not in conversation
    start = len(os.path.commonprefix([prompt, conversation]))
    if prompt.rfind("<", 0, start) > prompt.rfind(">", 0, start):
        start = prompt.rfind("<", 0, start)  # two tags begin alike
    reply = conversation[start : conversation.index("SUNNY")]
    for end in ENDS:
        reply = reply.partition(end)[0]
    parts = parse(parser_for(templates[name]), reply, prompt[:start])
    (found,) = [arguments for kind, arguments in parts if kind == "weather"]
    assert json.loads(found) == ARGUMENTS
    shown = "".join(part for kind, part in parts if kind == "text")
    # Some templates close in the history the thought that they opened in the prompt.
    assert shown.strip() in ("", "</think>"), "markup leaks"


@pytest.mark.parametrize(
    ("reasoning", "tool_calls", "name"),
    [
        ("auto", "auto", "hermes"),
        ("qwen3", "hermes", "hermes"),
        ("deepseek_r1", "qwen3_xml", "deepseek_r1+qwen3_coder"),
        ("none", "auto", "none+hermes"),
        ("auto", "none", "hermes+none"),
        ("none", "none", "none"),
        ("openai_gptoss", "openai", "harmony"),
        ("openai_gptoss", "none", "harmony+none"),
    ],
)
def test_flags_override_each_half(reasoning, tool_calls, name):
    template = '<tool_call>{"name": n, "arguments": a}</tool_call>'
    assert parser_for(template, reasoning, tool_calls).name == name


def test_each_half_can_be_turned_off():
    reply = '<think>Hm.</think><tool_call>{"name": "now", "arguments": {}}</tool_call>'
    think, call = reply[:18], reply[18:]
    assert parse(parser_for(None, "none", "hermes"), reply) == [("text", think), ("now", "{}")]
    assert parse(parser_for(None, "hermes", "none"), reply) == [
        ("reasoning", "Hm."), ("text", call),
    ]  # fmt: skip
    reply = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.now<|channel|>"
        "commentary<|message|>{}"
    )
    assert parse(parser_for(None, "none", "harmony"), reply) == [("text", "Hm."), ("now", "{}")]
    assert parse(parser_for(None, "harmony", "none"), reply) == [
        ("reasoning", "Hm."), ("text", "{}"),
    ]  # fmt: skip


def test_names_that_are_not_known():
    with pytest.raises(ConfigError, match=r"'hermse' \(--tool-call-parser\); the nearest known is"):
        parser_for(None, "auto", "hermse")
    with pytest.raises(ConfigError, match="can't be joined as harmony\\+hermes"):
        parser_for(None, "openai_gptoss", "hermes")
