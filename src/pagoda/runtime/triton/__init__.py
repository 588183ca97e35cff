"""What needs Triton: imported only where it is installed and tensors are on CUDA, or by tests."""
