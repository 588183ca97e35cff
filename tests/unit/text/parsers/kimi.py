"""Replies of Kimi K2, by what they show; `test_families` reads them."""

PARIS = '{"city": "Paris"}'
KB, KE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
kb, ka, ke = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
KIMI = {
    "calls": (
        f"I look.{KB}{kb}functions.weather:0{ka}{PARIS}{ke}{kb}functions.now:1{ka}{{}}{ke}{KE}",
        [("text", "I look."), ("weather", PARIS), ("now", "{}")],
    ),
    "thought first, and white space": (
        f"<think>Hm.</think>{KB}\n{kb} functions.now:12 {ka} {{}} {ke}\n{KE}",
        [("reasoning", "Hm."), ("now", "{}")],
    ),
    "an id that is a name": (f"{KB}{kb}now{ka}{{}}{ke}{KE}", [("now", "{}")]),
    "no JSON": (
        f"{KB}{kb}functions.weather:0{ka}Paris{ke}{KE}",
        [("text", f"{KB}{kb}functions.weather:0{ka}Paris")],
    ),
    "the markers' ends are missing": (
        f"{KB}{kb}functions.weather:0{ka}{PARIS}", [("weather", PARIS)],
    ),
}  # fmt: skip
OUTSIDE = f"{KB}{kb}functions.now:0{ka}{{}}{ke}{KE}"
"""Of no tool's."""
