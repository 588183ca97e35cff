"""Chat formats by the names that llama.cpp gives them (`--chat-template chatml`).

For models whose files hold no template, or a wrong one. Tools have no place in these formats: they
are described in the system turn (`spelled.py`).
"""

import json
import re
from dataclasses import dataclass

_FIELD = re.compile(r"(\{text\}|\{trimmed\}|\{system\})")


@dataclass(frozen=True)
class _Turns:
    """How turns are written: `{text}` is what one says, `{trimmed}` without the space around it."""

    user: str
    assistant: str
    reply: str
    """Behind the last turn, for the model to go on."""
    system: str = ""
    """Where `user` has a place for `{system}`, it is written there, else as a turn."""
    begin: str = ""


def _alike(turn: str, **differing: str) -> _Turns:
    """Every role's turn looks the same, and a reply begins as the assistant's turns do."""
    roles = {role: turn.replace("{role}", role) for role in ("system", "user", "assistant")}
    begin = _FIELD.split(roles["assistant"])[0]
    return _Turns(**{**roles, "reply": begin, **differing})


def _inst(user: str, assistant: str, system: str = "{text}\n\n") -> _Turns:
    return _Turns(user, assistant, "", system)


_LLAMA2_SYSTEM = "<<SYS>>\n{text}\n<</SYS>>\n\n"
_EXAONE = _Turns(
    "[|user|]{trimmed}\n", "[|assistant|]{trimmed}[|endofturn|]\n", "[|assistant|]",
    "[|system|]{trimmed}[|endofturn|]\n",
)  # fmt: skip
_BAILING = _Turns(
    "<role>HUMAN</role>{text}", "<role>ASSISTANT</role>{text}", "<role>ASSISTANT</role>",
    "<role>SYSTEM</role>{text}",
)  # fmt: skip
_GRANITE = _alike("<|start_of_role|>{role}<|end_of_role|>{text}<|end_of_text|>\n")

_PARTS = (
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'audio' %}[BEGIN_AUDIO][AUDIO]"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
)

_FORMATS = {
    "chatml": _alike("<|im_start|>{role}\n{text}<|im_end|>\n"),
    "llama2": _inst("[INST] {system}{text} [/INST]", "{text}</s>", "{text}\n"),
    "llama2-sys": _inst("[INST] {system}{text} [/INST]", "{text}</s>", _LLAMA2_SYSTEM),
    "llama2-sys-strip": _inst(
        "[INST] {system}{trimmed} [/INST]", "{trimmed}</s>", _LLAMA2_SYSTEM
    ),
    "llama3": _alike("<|start_header_id|>{role}<|end_header_id|>\n\n{trimmed}<|eot_id|>"),
    "llama4": _alike("<|header_start|>{role}<|header_end|>\n\n{trimmed}<|eot|>"),
    "mistral-v1": _inst(" [INST] {system}{text} [/INST]", " {text}</s>"),
    "mistral-v3": _inst("[INST] {system}{text}[/INST]", " {trimmed}</s>"),
    "mistral-v3-tekken": _inst("[INST]{system}{text}[/INST]", "{text}</s>"),
    "mistral-v7": _Turns(
        "[INST] {text}[/INST]", " {text}</s>", "", "[SYSTEM_PROMPT] {text}[/SYSTEM_PROMPT]"
    ),
    "mistral-v7-tekken": _Turns(
        "[INST]{text}[/INST]", "{text}</s>", "", "[SYSTEM_PROMPT]{text}[/SYSTEM_PROMPT]"
    ),
    "phi3": _alike("<|{role}|>\n{text}<|end|>\n"),
    "phi4": _alike("<|im_start|>{role}<|im_sep|>{text}<|im_end|>"),
    "falcon3": _alike("<|{role}|>\n{text}\n"),
    "zephyr": _alike("<|{role}|>\n{text}<|endoftext|>\n"),
    "gemma": _Turns(
        "<start_of_turn>user\n{system}{trimmed}<end_of_turn>\n",
        "<start_of_turn>model\n{trimmed}<end_of_turn>\n",
        "<start_of_turn>model\n",
        "{trimmed}\n\n",
        ),
    "openchat": _Turns(
        "GPT4 Correct User: {text}<|end_of_turn|>",
        "GPT4 Correct Assistant: {text}<|end_of_turn|>",
        "GPT4 Correct Assistant:",
        "{text}<|end_of_turn|>",
    ),
    "vicuna": _Turns("USER: {text}\n", "ASSISTANT: {text}</s>\n", "ASSISTANT:", "{text}\n\n"),
    "vicuna-orca": _Turns(
        "USER: {text}\n", "ASSISTANT: {text}</s>\n", "ASSISTANT:", "SYSTEM: {text}\n"
    ),
    "deepseek": _Turns(
        "### Instruction:\n{text}\n", "### Response:\n{text}\n<|EOT|>\n", "### Response:\n",
        "{text}",
    ),
    "deepseek2": _Turns(
        "User: {text}\n\n", "Assistant: {text}<｜end▁of▁sentence｜>", "Assistant:", "{text}\n\n"
    ),
    "deepseek3": _Turns(
        "<｜User｜>{text}",
        "<｜Assistant｜>{text}<｜end▁of▁sentence｜>",
        "<｜Assistant｜>",
        "{text}\n\n",
    ),
    "command-r": _Turns(
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{trimmed}<|END_OF_TURN_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{trimmed}<|END_OF_TURN_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{trimmed}<|END_OF_TURN_TOKEN|>",
        ),
    "chatglm3": _alike("<|{role}|>\n {text}", begin="[gMASK]sop", reply="<|assistant|>"),
    "chatglm4": _alike("<|{role}|>\n{text}", begin="[gMASK]<sop>"),
    "glmedge": _alike("<|{role}|>\n{text}", reply="<|assistant|>"),
    "minicpm": _Turns("<用户>{trimmed}<AI>", "{trimmed}", "", "{trimmed}"),
    "exaone3": _EXAONE,
    "exaone4": _EXAONE,
    "exaone-moe": _alike("<|{role}|>\n{trimmed}<|endofturn|>\n"),
    "granite": _GRANITE,
    "granite-4.0": _GRANITE,
    "megrez": _alike("<|role_start|>{role}<|role_end|>{text}<|turn_end|>"),
    "bailing": _BAILING,
    "smolvlm": _Turns(
        "User: {text}<end_of_utterance>\n", "Assistant: {text}<end_of_utterance>\n", "Assistant:",
        "{text}\n\n", begin="<|im_start|>",
    ),
    "hunyuan-moe": _Turns(
        "<|startoftext|>{text}<|extra_0|>", "{text}<|eos|>", "", "<|startoftext|>{text}<|extra_4|>"
    ),
    "kimi-k2": _Turns(
        "<|im_user|>user<|im_middle|>{text}<|im_end|>",
        "<|im_assistant|>assistant<|im_middle|>{text}<|im_end|>",
        "<|im_assistant|>assistant<|im_middle|>",
        "<|im_system|>system<|im_middle|>{text}<|im_end|>",
    ),
    "seed_oss": _alike(
        "<seed:bos>{role}\n{text}<seed:eos>",
        assistant="<seed:bos>assistant\n{trimmed}<seed:eos>",
    ),
    "grok-2": _Turns(
        "Human: {trimmed}<|separator|>\n\n", "Assistant: {text}<|separator|>\n\n", "Assistant:",
        "System: {trimmed}<|separator|>\n\n",
    ),
}  # fmt: skip

NAMED_TEMPLATES = tuple(_FORMATS)


def named_template(name: str, *, adds_bos: bool, hears: bool = False) -> str:
    """The Jinja source of a format of `NAMED_TEMPLATES`; `adds_bos` as the tokenizer does. With
    `hears` texts may have sounds among them, as Voxtral's."""
    source = _template(name, adds_bos=adds_bos)
    return source.replace("{{ message.content }}", _PARTS) if hears else source


def _template(name: str, *, adds_bos: bool) -> str:
    turns = _FORMATS[name]
    system = _written(turns.system)
    if "{system}" in turns.user:
        system = "{% set held.text %}{{ held.text }}" + system + "{% endset %}"
    # Where nobody but the system spoke.
    alone = _written(turns.user.replace("{text}", "").replace("{trimmed}", ""))
    return "".join(
        (
            "{{ bos_token }}" if adds_bos else "",
            _written(turns.begin),
            "{% set held = namespace(text='') %}{% for message in messages %}",
            "{% if message.role in ('system', 'developer') %}" + system,
            "{% elif message.role == 'assistant' %}" + _written(turns.assistant),
            "{% else %}" + _written(turns.user) + "{% set held.text = '' %}{% endif %}",
            "{% endfor %}{% if held.text %}" + alone + "{% endif %}",
            "{% if add_generation_prompt %}" + _written(turns.reply) + "{% endif %}",
        )
    )


def _written(turn: str) -> str:
    """What a turn's parts are in Jinja."""
    fields = {
        "{text}": "{{ message.content }}",
        "{trimmed}": "{{ message.content | trim }}",
        "{system}": "{{ held.text }}",
    }
    return "".join(
        fields.get(part) or "{{ " + json.dumps(part, ensure_ascii=False) + " }}"
        for part in _FIELD.split(turn)
        if part
    )
