"""Kernels in Triton, with the signatures and semantics of `kernels.ops`.

Imported only where tensors are on CUDA, or by tests, where Triton's interpreter runs them on the
CPU. A file's `examples` calls each of its ops once for every form that a target offers: what they
launch is what `aot` compiles.
"""
