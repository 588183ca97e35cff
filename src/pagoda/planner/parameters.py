"""How many parameters a model has, by its sizes alone."""

from pagoda.arch.spec import ModelSpec
from pagoda.planner.memory.tensors import model_tensors


def parameter_count(spec: ModelSpec) -> int:
    """The number of parameters of the whole model, norms and biases included."""
    return sum(tensor.elements for tensor in model_tensors(spec))
