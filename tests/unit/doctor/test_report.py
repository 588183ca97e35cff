from pagoda.doctor.findings import Finding
from pagoda.doctor.report import finding_lines, verdict

FOUND = [
    Finding("kernels", "PASS", "native, avx2"),
    Finding("swap", "WARN", "3.00 GiB of 4.00 GiB swap in use and more words", "buy a larger one"),
]


def test_a_table_with_fixes_below():
    assert finding_lines(FOUND, 100, color=False) == [
        "PASS  kernels  native, avx2",
        "WARN  swap     3.00 GiB of 4.00 GiB swap in use and more words",
        "               -> buy a larger one",
    ]


def test_long_lines_wrap_under_themselves():
    lines = finding_lines(FOUND, 45, color=False)
    assert lines[1:4] == [
        "WARN  swap     3.00 GiB of 4.00 GiB swap in",
        "               use and more words",
        "               -> buy a larger one",
    ]


def test_colors_take_no_room():
    plain, colored = (finding_lines(FOUND, 60, color=color) for color in (False, True))
    assert colored[0] == plain[0].replace("PASS", "\033[32mPASS\033[0m")
    assert len(colored) == len(plain)


def test_the_verdict_counts():
    assert "nothing needs fixing" in verdict(FOUND[:1])
    assert "1 WARN" in verdict(FOUND)
    failed = [*FOUND, Finding("memory", "FAIL", "none left", "buy some")]
    assert verdict(failed).startswith("1 FAIL: no model runs")
