"""Chat templates from anywhere: a prompt of bounded size, or a refusal.

Sources: src/pagoda/text/template/chat.py, template_sandbox.py, content_format.py.
"""

import jinja2

from pagoda.base.errors import RequestError
from pagoda.text.template.budget import MAX_OUTPUT
from pagoda.text.template.chat import ChatTemplate

WORDS = (
    b"{{", b"}}", b"{%", b"%}", b"{%- for m in messages -%}", b"{% endfor %}", b"{% if x %}",
    b"{% endif %}", b"{% set x = ", b"{% macro f(a) %}", b"{% endmacro %}", b"{{ f(x) }}",
    b"messages", b"m.content", b"m['role']", b"tools", b"bos_token", b"namespace(a=1)",
    b"range(99999)", b"|tojson", b"|trim", b"|join", b"|length", b"|list", b"|map('upper')",
    b"|center(99999999)", b"|indent(9999999)", b"|replace('a', 'bb')", b"|batch(9)",
    b"|wordwrap(1)", b"|format(1)", b" * 99999999", b" ** 99", b" ~ ", b"'%99d' % 1", b".format(x)",
    b"'{:99999999}'.format(1)", b".__class__", b"|attr('__class__')", b"raise_exception('x')",
    b"strftime_now('%Y')", b"{% generation %}", b"{% endgeneration %}", b"loop.index", b"is string",
    b"'x'", b"[1,2,3]", b"{'a':1}", b"none", b"cycler('a')", b"lipsum(999999)", b"joiner()",
    b"|sum(start='')", b"|slice(99999999)", b".ljust(999999999)", b".zfill(99999999)", b"99999999",
    b"|round(99999999)", b"|xmlattr", b"|urlize", b"|random", b".split()", b".strip()", b"[::-1]",
    b"{% break %}", b"{% call f(1) %}x{% endcall %}", b"{% filter upper %}x{% endfilter %}",
    b"{% include 'x' %}", b"{% import 'x' as y %}", b"{% extends 'x' %}", b"|groupby('a')",
    b"1000000 * 1000000", b"'a' * 1000000", b"|string", b"|e", b"{% raw %}", b"{% endraw %}",
)  # fmt: skip
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hello <|im_end|>"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "7 degrees", "tool_call_id": "call_1"},
    {"role": "user", "content": "And now?"},
]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def fuzz_template(data: bytes) -> None:
    try:
        template = ChatTemplate({"default": data.decode("utf-8", "replace")}, {"bos_token": "<s>"})
    except (jinja2.TemplateError, RecursionError):  # what `load_chat_template` reports
        return
    for tools, goes_on in ((None, False), (TOOLS, True)):
        try:
            text = template.render(
                MESSAGES, tools=tools, add_generation_prompt=not goes_on,
                continue_final_message=goes_on,
            )  # fmt: skip
        except RequestError as error:
            assert str(error).strip()
            continue
        assert isinstance(text, str) and len(text) <= MAX_OUTPUT
