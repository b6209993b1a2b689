# Two commands for a fresh machine with Python 3.11+:  make demo  and  make test

PYTHON ?= python3
BIN = .venv/bin

.PHONY: demo test test-gpu check format clean

demo: .venv/demo-installed  ## the whole way in a few minutes
	$(BIN)/electra demo

test: check  ## all tests; those that need a GPU or minutes are skipped visibly
	$(BIN)/pytest -n auto --dist loadfile

test-gpu: .venv/dev-installed  ## the complete suite of GPU tests, on a machine with a CUDA device
	$(BIN)/pytest -n 6 tests/kernels
	$(BIN)/pytest -n 6 -m gpu --ignore tests/kernels

check: .venv/dev-installed  ## format, lint and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: .venv/dev-installed
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

.venv/%-installed: pyproject.toml constraints.txt | .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$*]'
	touch $@

.venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "electra needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv demo
