"""The table of storage formats against the gguf package's and the safetensors library's."""

import pytest
from gguf.constants import GGML_QUANT_SIZES

from pagoda.weights.formats import FORMATS, GGML_FORMATS

# Two halves and 32 bytes in ggml's block_q8_1 since 2023; the package kept the size before.
OUTDATED = {"Q8_1"}


def test_every_gguf_type_has_the_reference_size() -> None:
    for kind, (elements, nbytes) in GGML_QUANT_SIZES.items():
        stored = GGML_FORMATS[kind.value]
        assert stored.name == kind.name
        if kind.name not in OUTDATED:
            assert (stored.block_elements, stored.block_bytes) == (elements, nbytes)


def test_nbytes() -> None:
    assert FORMATS["Q4_1"].nbytes(576) == 360
    assert FORMATS["F4"].nbytes(10) == 5
    with pytest.raises(ValueError, match="whole Q4_1 blocks of 32"):
        FORMATS["Q4_1"].nbytes(33)
