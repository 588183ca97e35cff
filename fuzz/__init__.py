"""Fuzzing: what comes from outside, changed at random, must be taken or refused in words.

A harness is one function `fuzz_x(data: bytes) -> None` in `harnesses/`. It returns where the input
was taken or refused by a documented error (a `PagodaError`), and raises anything else. `seeded.py`
changes the corpus by a seed, everywhere; `guided.py` lets Atheris find new code paths, where there
is Atheris; `native/` does the same to the C++ kernels.
"""
