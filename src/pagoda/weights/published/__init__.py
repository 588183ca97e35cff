"""Quantized safetensors as people publish them: several tensors per matrix, made one."""
