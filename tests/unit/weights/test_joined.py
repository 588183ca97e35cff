"""A model's checkpoint and its draft head's are read as one."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from pagoda.base.errors import CheckpointError
from pagoda.weights.joined import JoinedCheckpoint, PrefixedCheckpoint
from pagoda.weights.safetensors import SafetensorsCheckpoint

ONE = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def both(tmp_path):
    """Checkpoints of a model and of a head, with tensors of the same name."""
    paths = tmp_path / "model.safetensors", tmp_path / "head.safetensors"
    save_file({"norm.weight": ONE}, paths[0])
    save_file({"norm.weight": ONE + 100, "fc.weight": ONE.T.copy()}, paths[1])
    return [SafetensorsCheckpoint(path) for path in paths]


def test_a_heads_tensors_have_names_of_their_own(both):
    model, head = both
    joined = JoinedCheckpoint(model, PrefixedCheckpoint(head, "head."), "draft head")
    assert set(joined.tensors) == {"norm.weight", "head.norm.weight", "head.fc.weight"}
    assert all(info.name == name for name, info in joined.tensors.items())
    for name, values in (("norm.weight", ONE), ("head.norm.weight", ONE + 100)):
        found = joined.read(name, slice(1, 3), slice(0, 2)).view(np.float32)
        assert found.tolist() == values[1:3, :2].tolist()
        joined.release(name)
    joined.close()


def test_the_same_name_twice_is_refused(both):
    with pytest.raises(CheckpointError, match=r"'norm.weight' is in .* its draft head's"):
        JoinedCheckpoint(*both, "draft head")
