"""What the native kernels ask of a tensor; ValueError where it is another."""

import torch


def dims(name: str, tensor: torch.Tensor, count: int) -> tuple[int, ...]:
    """The shape of a tensor that must have `count` dimensions, of any sizes [...]."""
    if tensor.dim() != count:
        raise ValueError(f"{name} has {tensor.dim()} dimensions; it must have {count}.")
    return tuple(tensor.shape)


def check(
    name: str, tensor: torch.Tensor | None, dtype: torch.dtype | None, shape: tuple[int, ...] = ()
) -> None:
    """A contiguous tensor in the CPU's memory, of this dtype (None: any) and shape (empty:
    any shape)."""
    if tensor is None:
        raise ValueError(f"{name} is missing.")
    if not tensor.is_cpu:
        raise ValueError(f"{name} is on {tensor.device}; the native kernels need it on the CPU.")
    if dtype is not None and tensor.dtype != dtype:
        raise ValueError(f"{name} is {tensor.dtype}; it must be {dtype}.")
    if shape and tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {shape}.")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} is not contiguous; its strides are {tensor.stride()}.")


def check_rows(
    name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> None:
    """As `check`, but rows may lie any stride apart."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {shape}.")
    check(name, tensor[0] if len(tensor) else tensor, dtype)


def address(tensor: torch.Tensor | None) -> int:
    """Where a tensor of any shape begins; 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()
