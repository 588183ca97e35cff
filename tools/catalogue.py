"""The configs of published models that come with the doctor, for where no hub can be asked.

`python -m tools.catalogue` writes src/pagoda/doctor/catalogue.json from the configs that the tests
hold against known numbers; `--check` says whether it is as written. A model goes in once its config
is among those of the tests, with its numbers as published.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tests.models.test_real_sizes import CONFIGS
from tests.unit.arch.test_gemma4 import GEMMA4_26B_A4B, GEMMA4_31B
from tests.unit.arch.test_llama4 import SCOUT
from tests.unit.arch.test_moe import GPT_OSS_20B, QWEN3_30B_A3B
from tests.unit.arch.test_specs import LLAMA_3_1_8B, QWEN_2_5_7B
from tests.unit.planner.published import (
    GPT_OSS_120B,
    QWEN2_VL_2B,
    QWEN3_8B,
    QWEN3_VL_2B,
    QWEN3_VL_8B,
    QWEN3_VL_30B,
    QWEN3_VL_235B,
    QWEN25_VL_3B,
    QWEN25_VL_7B,
    QWEN36_27B,
)

PATH = Path(__file__).parent.parent / "src/pagoda/doctor/catalogue.json"

MODELS: dict[str, dict[str, Any]] = {
    "ByteDance-Seed/UI-TARS-1.5-7B": QWEN25_VL_7B,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": CONFIGS["DeepSeek-R1-Distill-Qwen-7B"][0],
    "google/gemma-4-26B-A4B": GEMMA4_26B_A4B,
    "google/gemma-4-26B-A4B-it": GEMMA4_26B_A4B,
    "google/gemma-4-31B": GEMMA4_31B,
    "google/gemma-4-31B-it": GEMMA4_31B,
    "HuggingFaceTB/SmolLM3-3B": CONFIGS["SmolLM3-3B"][0],
    "meta-llama/Llama-3.1-8B": LLAMA_3_1_8B,
    "meta-llama/Llama-3.1-8B-Instruct": LLAMA_3_1_8B,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": SCOUT,
    "microsoft/Phi-4-mini-instruct": CONFIGS["Phi-4-mini-instruct"][0],
    "openai/gpt-oss-20b": GPT_OSS_20B,
    "openai/gpt-oss-120b": GPT_OSS_120B,
    "Qwen/Qwen2.5-7B-Instruct": QWEN_2_5_7B,
    "Qwen/Qwen2-VL-2B-Instruct": QWEN2_VL_2B,
    "Qwen/Qwen2.5-VL-3B-Instruct": QWEN25_VL_3B,
    "Qwen/Qwen2.5-VL-7B-Instruct": QWEN25_VL_7B,
    "Qwen/Qwen3-8B": QWEN3_8B,
    "Qwen/Qwen3-30B-A3B": QWEN3_30B_A3B,
    "Qwen/Qwen3-VL-2B-Instruct": QWEN3_VL_2B,
    "Qwen/Qwen3-VL-2B-Thinking": QWEN3_VL_2B,
    "Qwen/Qwen3-VL-8B-Instruct": QWEN3_VL_8B,
    "Qwen/Qwen3-VL-30B-A3B-Instruct": QWEN3_VL_30B,
    "Qwen/Qwen3-VL-30B-A3B-Thinking": QWEN3_VL_30B,
    "Qwen/Qwen3-VL-235B-A22B-Instruct": QWEN3_VL_235B,
    "Qwen/Qwen3.5-27B": QWEN36_27B,
    "Qwen/Qwen3.6-27B": QWEN36_27B,
}
# Not as published in the tests: YaRN that a README adds, and stretches that are made up.
_LEFT_OUT = {"microsoft/Phi-4-mini-instruct", "Qwen/Qwen2.5-7B-Instruct"}


def written() -> str:
    """One line for each model; an equal config is the name of the one that has it."""
    lines, names = [], dict[str, str]()
    for name, config in sorted(MODELS.items(), key=lambda item: item[0].lower()):
        if name in _LEFT_OUT:
            config = {key: value for key, value in config.items() if key != "rope_scaling"}
        text = json.dumps(config, separators=(",", ":"), sort_keys=True)
        same = names.setdefault(text, name)
        lines.append(f"{json.dumps(name)}:{text if same == name else json.dumps(same)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args().check:
        return int(PATH.read_text() != written())
    PATH.write_text(written())
    return 0


if __name__ == "__main__":
    sys.exit(main())
