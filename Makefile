# make demo    a real run on this machine: trains, is killed twice, resumes; table and plots in runs/quickstart
# make test    everything CI runs: ruff, mypy, pytest with doctests and the README's snippets
# make lint    only ruff and mypy
# make bench   every stage against its floor and the off-the-shelf alternative, as ratios
# make soak    the full-size runs that `make test` leaves out (hours)
#
# PYTHON=python3.12  the interpreter to start from      VENV=.venv  where the environment goes
# PYTEST_ARGS=...    passed to pytest, e.g. PYTEST_ARGS='tests/store -x'
# BENCH_ARGS=...     passed to `dynaquant bench`

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test lint bench soak clean

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
BENCH_ARGS ?= --json
BIN := $(VENV)/bin

# One stamp per set of extras: an environment is made once and refreshed when its inputs change.
INPUTS := pyproject.toml constraints.txt
USER_ENV := $(VENV)/.installed-plots
DEV_ENV := $(VENV)/.installed-dev

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -9

$(BIN)/python:
	@echo "making an environment in $(VENV); torch is large, this takes a few minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(USER_ENV): $(INPUTS) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[plots]'
	touch $@

$(DEV_ENV): $(INPUTS) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: $(USER_ENV)
	$(BIN)/dynaquant warm
	$(BIN)/dynaquant run configs/quickstart.yaml

lint: $(DEV_ENV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -m 'not slow' $(PYTEST_ARGS)

bench: $(DEV_ENV)
	$(BIN)/dynaquant bench $(BENCH_ARGS)

soak: $(DEV_ENV)
	$(BIN)/python -m pytest -m slow --timeout=0 $(PYTEST_ARGS)

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
