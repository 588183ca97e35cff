"""The GPU backend on a GPU that is there for ten minutes: faults first, then figures.

    make gpu-check                                    # or, with nothing installed but torch:
    PYTHONPATH=src:. python -m tools.gpu_check --out FOLDER

Needs torch for CUDA, Triton, and the wheels that its first phase asks for. Each phase is a process
of its own with a bound on its time: one that crashes, hangs or is killed costs what it had not
found yet, and no other phase. FOLDER has a file for each phase as soon as it has ended, and its
log. Tables come last, and behind them what to fix first. `--models` runs the tests of tiny models
on the GPU instead, which takes two minutes on 16 cores. `--play` runs all of it on a CPU, in
small: kernels interpreted, engines on a GPU that is made up, figures without meaning.
"""
