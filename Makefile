# make demo    a real run on this machine: trains, is killed twice, resumes; table and plots in runs/quickstart
# make test    everything CI runs: ruff, mypy, pytest with doctests and the README's snippets, in two environments:
#              the newest torch, and the older one that Composer needs (6 GB more)
# make lint    only ruff and mypy
# make bench   every stage against its floor and the off-the-shelf alternative, as ratios
# make comparison  every method on the same models (hours; goes on where it stopped; COMPARISON_ARGS='--jobs 2')
# make soak    the full-size runs that `make test` leaves out (hours)
#
# PYTHON=python3.12  the interpreter to start from      VENV=.venv, COMPOSER_VENV=.venv-composer  where they go
# PYTEST_ARGS=...    passed to pytest, e.g. PYTEST_ARGS='tests/store -x'; then only the first environment is used
# COMPOSER_ARGS=...  the same for `make test-composer`, e.g. COMPOSER_ARGS='tests/integrations/composer -x'
# WORKERS=...        how pytest spreads over processes, e.g. WORKERS= for one
# BENCH_ARGS=...     passed to `dynaquant bench`

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test test-newest test-composer lint bench comparison soak clean

PYTHON ?= python3
VENV ?= .venv
COMPOSER_VENV ?= .venv-composer
PYTEST_ARGS ?=
BENCH_ARGS ?= --json
COMPARISON_ARGS ?=
# Two processes, each with whole files: much of a test is Python, which one core runs.
WORKERS ?= -n 2 --dist loadfile
# Either of them has a core: a second thread of torch would wait for the other one's.
test-newest test-composer: export OMP_NUM_THREADS ?= 1
BIN := $(VENV)/bin
COMPOSER_BIN := $(COMPOSER_VENV)/bin

# What Composer's environment runs; the first one runs everything, Composer's own tests excepted.
# Torchvision is in it alone.
COMPOSER_ARGS ?= $(addprefix tests/,integrations memory/test_smaq_foreign.py plugins project/test_public_names.py state store training)

# One stamp per set of extras: an environment is made once and refreshed when its inputs change.
INPUTS := pyproject.toml constraints.txt
USER_ENV := $(VENV)/.installed-plots
DEV_ENV := $(VENV)/.installed-dev
COMPOSER_ENV := $(COMPOSER_VENV)/.installed

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

$(BIN)/python $(COMPOSER_BIN)/python: %/bin/python:
	@echo "making an environment in $*; torch is large, this takes a few minutes"
	$(PYTHON) -m venv $*
	$@ -m pip install --quiet --upgrade pip

$(USER_ENV): $(INPUTS) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[plots]'
	touch $@

$(DEV_ENV): $(INPUTS) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

$(COMPOSER_ENV): pyproject.toml constraints-composer.txt | $(COMPOSER_BIN)/python
	$(COMPOSER_BIN)/python -m pip install --quiet -c constraints-composer.txt -e '.[composer,test]'
	touch $@

demo: $(USER_ENV)
	$(BIN)/dynaquant warm
	$(BIN)/dynaquant run configs/quickstart.yaml

lint: $(DEV_ENV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint test-newest $(if $(PYTEST_ARGS),,test-composer)

test-newest: $(DEV_ENV)
	$(BIN)/python -m pytest $(WORKERS) -m 'not slow' $(PYTEST_ARGS)

test-composer: $(COMPOSER_ENV)
	$(COMPOSER_BIN)/python -m pytest $(WORKERS) -m 'not slow' $(COMPOSER_ARGS)

bench: $(DEV_ENV)
	$(BIN)/dynaquant bench $(BENCH_ARGS)

comparison: $(DEV_ENV)
	$(BIN)/dynaquant run configs/comparison/replay.yaml $(COMPARISON_ARGS)
	$(BIN)/dynaquant run configs/comparison/train.yaml $(COMPARISON_ARGS)
	$(BIN)/python benchmarks/comparison.py runs/comparison_replay runs/comparison_train

soak: $(DEV_ENV) $(COMPOSER_ENV)
	$(BIN)/python -m pytest -m slow --timeout=0 $(PYTEST_ARGS)
	$(COMPOSER_BIN)/python -m pytest -m slow --timeout=0 tests/integrations/composer

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
