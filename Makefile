# Everything a newcomer needs: `make serve`, `make test`. Each target sets up .venv when missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
MODEL ?= smollm2
ARGS ?=
# The kernels need a C++ compiler; where there is none, the one in the ziglang package does.
# (make takes the 127 of a missing command for a failure of the whole line.)
COMPILER := $(shell for name in c++ g++ clang++; do command -v $$name || true; done)
ZIG = CXX="$$($(BIN)/python -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__))')/zig c++"
CSRC := CMakeLists.txt $(wildcard src/pagoda/kernels/cpu/csrc/*)
# vLLM's default of 1000 long prompts is for a datacenter GPU; a laptop takes an hour for it.
BENCH_LOAD := --num-prompts 32 --input-len 128 --output-len 64
SOURCES := src agent/src tests tools bench fuzz

.PHONY: help install install-dev serve chat test test-all test-agent test-quick desktop simulate fuzz \
  soak check format docs bench bench-agent bench-install bench-peers gpu-check man wheels clean

help:
	@echo "make serve       install, fetch the default model, serve: chat page at http://127.0.0.1:8000, API at /v1"
	@echo "                 (MODEL=./file.gguf chooses another, ARGS='--port 9000' adds flags)"
	@echo "make chat        talk to the model in this terminal"
	@echo "make test        what each landing passes    make test-quick   what takes a few minutes"
	@echo "make test-all    all tests, the agent's among them"
	@echo "make test-agent  those of the agent, with the desktops that they need (Debian, as root)"
	@echo "make desktop     those desktops, and the browser for tests of the pages (Debian, as root)"
	@echo "make simulate    20,000 seeds of faults in virtual time (ARGS='--seeds 1000' fewer)"
	@echo "make check       format, lint, types, floors, sizes, docs"
	@echo "make bench       latency and throughput of the default model on this machine"
	@echo "make bench-peers  Pagoda beside its peers in turns; installs them first, takes an hour"
	@echo "make gpu-check   ten minutes on an NVIDIA GPU: faults, figures, and what to fix first"
	@echo "make bench-install  from a fresh clone to the first token, step by step"
	@echo "make bench-agent  what the agent costs beside its model"
	@echo "make fuzz        hostile inputs for each parser and kernel (HARNESS=gguf, SECONDS=3600 each)"
	@echo "make soak        an hour of mixed load and chaos; fails on a wrong reply, a hang or a leak"
	@echo "make man         manual pages: man pagoda, man pagoda-serve, ... (.venv/bin on PATH)"
	@echo "make wheels      wheels for x86-64 and ARM64 in dist/, with the kernels of all instruction sets"
	@echo "make clean       remove .venv and build products (models stay: pagoda rm)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "Pagoda needs Python 3.11 to 3.13; $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo not there). Try: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "Python has no venv module here. On Debian: apt install python3-venv"; rm -rf $(VENV); exit 1; }

$(VENV)/.torch: constraints.txt | $(BIN)/python
	@echo "Installing Pagoda into $(VENV): PyTorch first, then the rest (some minutes, once)."
	$(PIP) install --quiet --progress-bar on --no-compile -c constraints.txt torch
	$(if $(COMPILER),,$(PIP) install --quiet --no-compile ziglang)
	@touch $@

# Kernels are compiled for the CPU at hand; a wheel has those of all. So is all Python, torch's too,
# on all cores (tools/install.py).
$(VENV)/.installed: $(VENV)/.torch pyproject.toml agent/pyproject.toml $(CSRC)
	@echo "Installing Pagoda itself; compiling its kernels takes a minute or two."
	@$(if $(COMPILER),,$(ZIG)) $(BIN)/python tools/install.py
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.torch pyproject.toml agent/pyproject.toml $(CSRC)
	@echo "Installing Pagoda with what tests and checks need; compiling its kernels takes a minute or two."
	@$(if $(COMPILER),,$(ZIG)) $(BIN)/python tools/install.py video,audio,ray,test,dev
	@touch $(VENV)/.installed $@

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

serve: install
	$(BIN)/pagoda serve $(MODEL) $(ARGS)

chat: install
	$(BIN)/pagoda chat $(MODEL) $(ARGS)

# Each process loads models of its own, so that more of them want more memory.
TEST_PROCESSES ?= 2
PYTEST = $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile
# Tests behind a proxy need nginx and Caddy (Debian: apt install nginx-light caddy), and are skipped without.
test: install-dev
	$(PYTEST) tests -m "not exhaustive" $(ARGS)

test-all: install-dev
	$(PYTEST) tests $(ARGS)

# The agent's tests need X servers and programs to operate; where they are missing, they are skipped.
DESKTOP := xvfb tigervnc-standalone-server x11vnc openbox xterm zenity xdotool x11-xserver-utils \
  x11-xkb-utils python3-tk chromium chromium-headless-shell openssl
test-agent: desktop install-dev
	$(PYTEST) tests/agent $(ARGS)

desktop:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends $(DESKTOP); } >/dev/null || \
	    echo "The programs of the desktop tests cannot be installed here."; \
	else echo "On Debian: sudo apt install $(DESKTOP)"; fi

test-quick: install-dev
	$(BIN)/python -m pytest tests -m "not slow and not exhaustive"

simulate: install-dev
	$(BIN)/python -m tests.simulation --seeds 20000 --processes $(TEST_PROCESSES) --record $(ARGS)

check: install-dev
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/lint-imports --config .importlinter --no-cache
	$(BIN)/mypy src/pagoda agent/src
	$(BIN)/python tools/check_sizes.py
	$(BIN)/python tools/gen_docs.py --check
	$(BIN)/python -m tools.guide_tables --check

format: install-dev
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

docs: install-dev
	$(BIN)/python tools/gen_docs.py
	$(BIN)/python -m tools.guide_tables

bench-peers: install-dev
	$(BIN)/python -m bench.peers $(ARGS)

# With the Python that has torch for CUDA and Triton; nothing is installed.
gpu-check:
	PYTHONPATH=src:. $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m tools.gpu_check $(ARGS)

# `man` finds them beside the programs on PATH. The wheels have those of build/man (CMakeLists.txt).
man: install
	$(PIP) install --quiet "argparse-manpage>=4.6,<5"
	$(BIN)/python tools/man.py build/man
	@mkdir -p $(VENV)/share/man/man1 && cp build/man/*.1 $(VENV)/share/man/man1
	@echo "Now, after \`source $(BIN)/activate\`: man pagoda-serve"

# On any Linux with Python 3.11 to 3.13 on PATH; the compiler comes with a package.
wheels: man
	$(PYTHON) tools/wheels.py $(ARGS)

bench-install:
	$(PYTHON) -m bench.install $(ARGS)

bench-agent: install-dev
	$(BIN)/python -m bench.agent $(ARGS)

# Atheris where there is a wheel of it; elsewhere the same harnesses run from a seed.
HARNESS ?=
SECONDS ?= 1800
fuzz: install-dev
	@$(PIP) install --quiet --only-binary :all: "atheris>=3,<4" || \
	  echo "Atheris cannot be had here; inputs are made from a seed."
	$(BIN)/python -m fuzz $(HARNESS) --seconds $(SECONDS) $(ARGS)

soak: install-dev
	$(BIN)/python -m tools.soak $(ARGS)

bench: install
	$(BIN)/pagoda bench latency --model $(MODEL) $(ARGS)
	$(BIN)/pagoda bench throughput --model $(MODEL) $(BENCH_LOAD) $(ARGS)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
