"""What phases do: a module each, whose `run` finds things until its clock has no time left. They
alone import torch, Triton and Pagoda, for any of these may be broken."""
