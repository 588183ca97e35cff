"""Replies of DeepSeek V3.2 and V4, by what they show; `test_families` reads them."""

DSML = {
    "thought, text and two calls": (
        "<think>Hm.</think>Let me see.\n\n<｜DSML｜function_calls>\n"
        '<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls>",
        [
            ("reasoning", "Hm."), ("text", "Let me see."),
            ("weather", '{"city": "Paris", "days": 2}'), ("now", "{}"),
        ],
    ),
    "what a value is, the tag says": (
        '<｜DSML｜tool_calls><｜DSML｜invoke name="weather">'
        '<｜DSML｜parameter name="city" string="true">75</｜DSML｜parameter>'
        '<｜DSML｜parameter name="at" string="false">{"lat": 48.9}</｜DSML｜parameter>'
        "</｜DSML｜invoke></｜DSML｜tool_calls>",
        [("weather", '{"city": "75", "at": {"lat": 48.9}}')],
    ),
}  # fmt: skip
