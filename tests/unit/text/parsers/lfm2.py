"""Replies of LFM2, by what they show; `test_families` reads them."""

PARIS = '{"city": "Paris"}'
A, E = "<|tool_call_start|>", "<|tool_call_end|>"


def _weather(arguments: str, expected: str) -> tuple[str, list[tuple[str, ...]]]:
    return f"{A}[weather({arguments})]{E}", [("weather", expected)]


LFM2 = {
    "as published": (
        f'{A}[weather(city="Paris")]{E}I look up the weather.',
        [("weather", PARIS), ("text", "I look up the weather.")],
    ),
    "thought, text and two calls": (
        f'<think>Hm.</think>I look.{A}[weather(city="Paris", days=2), now()]{E}',
        [
            ("reasoning", "Hm."), ("text", "I look."),
            ("weather", '{"city": "Paris", "days": 2}'), ("now", "{}"),
        ],
    ),
    "Python's values": _weather(
        "hourly=True, days=-3, units=None, anything={'x': [1, 2.5, False], 1: (\"a\",)},",
        '{"hourly": true, "days": -3, "units": null, '
        '"anything": {"x": [1, 2.5, false], "1": ["a"]}}',
    ),
    "Python's strings": _weather(
        r"""city='He said "no"\n\tIt\'s \\ \d \xe9 \u20ac', units="", places=['''a"
'b''']""",
        r'{"city": "He said \"no\"\n\tIt' "'" r's \\ \\d \u00e9 \u20ac", "units": "", '
        r'"places": ["a\"\n' "'" r'b"]}',
    ),
    "a quote that is not escaped": _weather(
        "city='Mary's \"M\"', days=1", '{"city": "Mary\'s \\"M\\"", "days": 1}'
    ),
    "a pair of surrogates": _weather(r"city='\ud83d\ude00'", r'{"city": "\ud83d\ude00"}'),
    "what JSON writes": _weather(
        'hourly=true, anything={"x": null}', '{"hourly": true, "anything": {"x": null}}'
    ),
    "brackets and tags in strings": _weather(
        f'city=")]{E}", days=1', f'{{"city": ")]{E}", "days": 1}}'
    ),
    "words without quotes": _weather("city=New York", '{"city": "New York"}'),
    "white space": (f"{A}\n[ now( ) ,\n weather( city = 'Paris' ) ]\n{E}",
                    [("now", "{}"), ("weather", PARIS)]),
    "no list": (f"{A}now(){E}", [("now", "{}")]),
    "JSON, where it was asked for": (
        f'{A}[{{"name": "weather", "arguments": {PARIS}}}]{E}', [("weather", PARIS)],
    ),
    "no call": (f"{A}sunny{E}", [("text", f"{A}sunny")]),
    "values without names": (
        f'{A}[weather("Paris")]{E}', [("text", f'{A}[weather("Paris")]')],
    ),
    "cut off in the arguments": (
        f"{A}[weather(city='Par", [("weather", '{"city": "Par')],
    ),
    "cut off before": (f"{A}[weat", [("text", f"{A}[weat")]),
    "the ends are missing": (f"{A}[weather(city='Paris')", [("weather", PARIS)]),
}  # fmt: skip
