"""Safetensors that were quantized before they were published: several tensors per matrix
become one."""
