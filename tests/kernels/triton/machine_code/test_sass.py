"""Costs are counted from machine code as it is printed, and the page of them keeps what it says."""

import pytest

pytest.importorskip("triton", reason="triton is not installed")
from tools.sass import Cost, bytes_under_way, cost
from tools.triton_table import _read

LINES = range(30, 40)
HERE, ELSEWHERE = (f'\t//## File "/a/products/decode.py", line {line}' for line in (35, 90))
FEW = 4
# The next step's codes are asked for before this one's are used, as in a loop of `row_sums`.
AHEAD = f"""
.L_x_0:
        /*0000*/                   IMAD.MOV.U32 R8, RZ, RZ, R12 ;
        /*0010*/                   IMAD.MOV.U32 R9, RZ, RZ, R13 ;
{HERE}
        /*0020*/              @!P0 LDG.E.64 R12, desc[UR6][R20.64] ;
{ELSEWHERE}
        /*0030*/                   LDG.E.128 R24, desc[UR6][R22.64] ;
        /*0040*/                   FFMA R4, R8, R24, R4 ;
        /*0050*/                   NOP ;
        /*0060*/                   FFMA R4, R9, R25, R4 ;
        /*0070*/               @P1 BRA `(.L_x_0) ;
.L_x_1:
        /*0080*/                   BRA `(.L_x_1) ;
"""
# Two groups of copies to shared memory, of which one may be open.
COPIED = f"""
.L_x_0:
        /*0000*/                   DEPBAR.LE SB0, 0x1 ;
{HERE}
        /*0010*/                   LDGSTS.E.BYPASS.128 [R4], desc[UR6][R20.64] ;
{ELSEWHERE}
        /*0020*/                   LDGDEPBAR ;
        /*0030*/               @P1 BRA `(.L_x_0) ;
"""


@pytest.mark.parametrize(
    ("text", "expected"), [(AHEAD, Cost(7 / 16, 8, 0)), (COPIED, Cost(4 / 32, 32, 0))]
)
def test_a_loop(text, expected):
    assert cost(text, "products/decode.py", LINES, FEW) == expected


def test_used_at_once_and_used_together():
    """A load whose value is read by the next instruction, and two that wait for each other."""
    used = AHEAD.replace("R8, R24", "R12, R24")
    assert cost(used, "products/decode.py", LINES, FEW).bytes_per_thread == 8
    load = "        /*0021*/                   LDG.E.64 R14, desc[UR6][R20.64] ;\n"
    two = AHEAD.replace(ELSEWHERE, load + ELSEWHERE)
    assert cost(two, "products/decode.py", LINES, FEW) == Cost(8 / 32, 16, 0)


def test_what_is_stored_to_shared_memory():
    store = "        /*0061*/                   STS.128 [R2], R4 ;\n"
    text = COPIED.replace(ELSEWHERE, 2 * store + ELSEWHERE)
    assert cost(text, "products/decode.py", LINES, FEW).stored == 1
    copied = text.replace("STS.128", "LDGSTS.E.128")
    assert cost(copied, "products/decode.py", LINES, FEW).stored == 0


def test_no_loop_loads_codes():
    with pytest.raises(
        ValueError, match="no loop loads codes at products/decode.py, lines 50 to 5"
    ):
        cost(AHEAD, "products/decode.py", range(50, 60), FEW)


@pytest.mark.parametrize(
    ("registers", "shared", "each", "programs"),
    [
        (40, 64, 100, 12),  # by registers
        (40, 100_000, 100, 2),
        (40, 64, 5, 5),  # no more are there
        (16, 0, 100, 16),  # by threads
    ],
)
def test_programs_of_a_processor(registers, shared, each, programs):
    assert bytes_under_way(16, 90, registers, shared, 4, each) == programs * 128 * 16


@pytest.mark.parametrize(
    ("storage", "most", "targets"),
    [("INT4", 4, (80, 90)), ("Q4_0", 4, (80, 90)), ("Q4_K", 4, (80, 90)),
     ("MXFP4", 5, (80, 90)), ("FP4", 5.5, (80, 90)), ("FP8", 3, (90,)), ("FP8", 5, (75, 80, 86))],
)  # fmt: skip
def test_a_tokens_products_are_cheap(storage, most, targets):
    """Fewer instructions than a GPU issues while it reads a weight, and what keeps its memory busy
    under way: 18 KB for each processor of an H100."""
    rows = _read()[1]
    found = {
        target: need
        for form, row in rows.items()
        if form[:2] == ("gemm.one_token", f"1 x 4096 x 4096, {storage}")
        for target, need in row.needs.items()
    }
    for target in targets:
        assert 0 < found[target].per_weight <= most
        assert found[target].under_way >= 18_000
