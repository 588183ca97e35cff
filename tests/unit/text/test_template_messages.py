import json

import pytest

from pagoda.text.template.content_format import ContentFormat, detect_content_format
from pagoda.text.template.messages import template_messages

STRING = ContentFormat("string")


def call(call_id, arguments="{}"):
    return {
        "id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments},
    }  # fmt: skip


def history(*ids):
    results = [{"role": "tool", "tool_call_id": i, "content": "x"} for i in ids]
    turn = {"role": "assistant", "content": None, "tool_calls": [call(i) for i in ids]}
    return [turn, *results]


def test_short_ids_still_pair_calls_with_results():
    given = history("call_a", "call_b", "abcdefghi")
    messages = template_messages(given, STRING, parse_arguments=True, short_ids=True)
    ids = [entry["id"] for entry in messages[0]["tool_calls"]]
    assert ids == [message["tool_call_id"] for message in messages[1:]]
    assert len(set(ids)) == 3 and all(len(i) == 9 and i.isalnum() for i in ids)
    assert ids[2] == "abcdefghi"
    assert given == history("call_a", "call_b", "abcdefghi"), "the client's own stays as it is"


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [('{"a": 1}', {"a": 1}), ("", {}), ('{"a', '{"a'), ("[1]", "[1]"), ({"a": 1}, {"a": 1})],
)
def test_arguments_become_objects_where_they_are_some(arguments, parsed):
    turn = {"role": "assistant", "content": None, "tool_calls": [call("c", arguments)]}
    (message,) = template_messages([turn], STRING, parse_arguments=True)
    assert message["tool_calls"][0]["function"]["arguments"] == parsed
    (message,) = template_messages([turn], STRING, parse_arguments=False)
    text = message["tool_calls"][0]["function"]["arguments"]
    assert text == (json.dumps(arguments) if isinstance(arguments, dict) else arguments)


@pytest.mark.parametrize(
    ("template", "silence"),
    [
        ("{{ message.content }}", ""),
        ("{% if message.content is none %}{% endif %}", None),
        ("{% if message.content is not none %}{% endif %}", None),
        ("{% if message.content is none or message.content == '' %}{% endif %}", ""),
        ("{% for part in message.content %}{% endfor %}", []),
        (
            "{% if message.content is string %}{% else %}{% for part in message.content %}"
            "{% endfor %}{% endif %}",
            "",
        ),
    ],
)
@pytest.mark.parametrize("content", [None, ""])
def test_a_turn_of_calls_alone_has_the_content_that_the_template_asks_for(
    template, silence, content
):
    turn = {"role": "assistant", "content": content, "tool_calls": [call("c")]}
    wanted = detect_content_format(template)
    (message,) = template_messages([turn], wanted, parse_arguments=True)
    assert message["content"] == silence
