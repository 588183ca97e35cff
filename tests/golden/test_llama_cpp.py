"""Logits equal to llama.cpp's on GGUFs that its own converter wrote (tools/llama_golden.py).

The files are F32 and llama.cpp kept keys and values in F32, so both sides round sums of fp32
products only: the orders of summation and the approximations of exp, sin and cos differ.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.models import tiny
from tests.models.driver import Driver

FILES = sorted((Path(__file__).parent / "llama_cpp").glob("*.npz"))
BOUND = 1e-4


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_logits_equal(file: Path, tmp_path: Path):
    golden = np.load(file)
    path = tmp_path / "model.gguf"
    golden["gguf"].tofile(path)
    ids = golden["ids"].tolist()
    expected = torch.from_numpy(golden["logits"])
    assert expected.std() > 0.3
    model = tiny.load(path)
    for chunk in (len(ids), 5):
        torch.testing.assert_close(
            Driver(model).run(ids, chunk=chunk), expected, rtol=0, atol=BOUND
        )
