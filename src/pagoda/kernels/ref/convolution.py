"""What a tower of convolutions has beside products: kernels of each channel, and attention whose
heads share keys and values."""

import torch
import torch.nn.functional as F


def channel_conv(x: torch.Tensor, weight: torch.Tensor, stride: int) -> torch.Tensor:
    """As `ops.channel_conv`."""
    planes = x.permute(2, 0, 1)[None]
    kernels = weight.permute(2, 0, 1)[:, None].to(x.dtype)
    convolved = F.conv2d(planes, kernels, stride=stride, groups=x.shape[2])
    return convolved[0].permute(1, 2, 0).contiguous()


def query_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> torch.Tensor:
    """As `ops.query_attention`."""
    flat = q.reshape(1, 1, -1, q.shape[2])
    attended = F.scaled_dot_product_attention(flat, k[None, None], v[None, None], scale=scale)
    return attended.view(q.shape)
