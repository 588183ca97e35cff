"""From the host to the device, without waiting for what the device is doing."""

import numpy as np
import torch


def to_tensor(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """A numpy array of any shape on the device; on the CPU it keeps the array's memory where it
    can.

    On a GPU it arrives in order with the work queued there, and the array may be changed at once.
    (A copy from memory that is not pinned would wait for all of that work first.)
    """
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if device.type != "cuda":
        return tensor.to(device)
    # torch keeps the pinned block until the copy is done, and hands it out again then.
    return tensor.pin_memory().to(device, non_blocking=True)


def copy_to(there: torch.Tensor, here: torch.Tensor) -> None:
    """A host's tensor into one on the device, both of any shape; it may be changed at once, as with
    `to_tensor`."""
    there.copy_(here.pin_memory() if there.is_cuda else here, non_blocking=True)
