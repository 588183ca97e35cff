"""How often a step reads the weights of an expert: counted where panels are multiplied."""

import random
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # it compiles the kernels

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "src/pagoda/kernels/cpu/csrc"
# Of an expert's three matrices, in panels of 16 rows.
PANELS = 2 * 48 // 16 + 32 // 16


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    out = tmp_path_factory.mktemp("reads") / "count_reads"
    theirs = [CSRC / name for name in ("grids.cpp", "pool.cpp")]
    sources = [Path(__file__).parent / "native/count_reads.cpp", *theirs]
    flags = ["-std=c++20", "-O0", "-w", f"-I{CSRC}", "-pthread", "-o", str(out)]
    subprocess.run([compiler, *map(str, sources), *flags], check=True)
    return out


def times_read(program: Path, count: int, chosen: list[list[int]]) -> dict[int, int]:
    """How many panels were read how often, where each token chose these of `count` experts."""
    words = [count, len(chosen[0]), len(chosen), *(expert for row in chosen for expert in row)]
    run = subprocess.run(
        [program], input=" ".join(map(str, words)), capture_output=True, text=True, check=True
    )
    return {int(line.split()[0]): int(line.split()[1]) for line in run.stdout.splitlines()}


def random_choice(tokens: int, count: int, top_k: int) -> tuple[list[list[int]], int]:
    """Of each token, and how many experts are met."""
    choose = random.Random(tokens)
    chosen = [choose.sample(range(count), top_k) for _ in range(tokens)]
    return chosen, len({expert for row in chosen for expert in row})


@pytest.mark.parametrize(
    ("tokens", "count", "top_k"), [(1, 128, 8), (16, 128, 8), (64, 32, 4), (64, 128, 8)]
)
def test_each_expert_once(program, tokens, count, top_k):
    chosen, met = random_choice(tokens, count, top_k)
    assert times_read(program, count, chosen) == {1: met * PANELS}


def test_a_prompt_cuts_no_more_experts_than_it_has_rounds(program):
    """One of 4,096 pairs has eight, and an expert that lies on the border of two is in both."""
    chosen, met = random_choice(512, 128, 8)
    found = times_read(program, 128, chosen)
    assert set(found) == {1, 2} and sum(found.values()) == met * PANELS
    assert found[2] <= 7 * PANELS


def test_many_tokens_of_one_expert_take_segments(program):
    """Whose activations are all that a cache holds beside the weights."""
    assert times_read(program, 3, [[1]] * 504) == {2: PANELS}
