"""Replies of Hunyuan, by what they show; `test_families` reads them."""

HUNYUAN = {
    "thought and text": (
        "<think>\nHm.\n</think>\n<answer>\nHi.\n</answer>",
        [("reasoning", "\nHm.\n"), ("text", "\n\nHi.\n")],
    ),
    "two calls": (
        '<think>Hm.</think><answer><tool_calls>[{"name": "weather", "arguments": {"city": "Paris"}}'
        ', {"name": "now", "arguments": {}}]</tool_calls></answer>',
        [("reasoning", "Hm."), ("weather", '{"city": "Paris"}'), ("now", "{}")],
    ),
}
