# Two commands for a fresh machine with Python 3.11+:  make demo  and  make test

PYTHON ?= python3
BIN = .venv/bin
MODELS = $(addprefix ./,$(wildcard weights/*/.))

.PHONY: demo test test-gpu torture check docs format fuzz lock audit clean

FUZZ_SECONDS ?= 30
FUZZ_TARGETS ?= $$($(BIN)/python -m tests.fuzz.run_atheris --list)

demo: .venv/demo-installed  ## the whole way in a few minutes
	$(BIN)/electra demo

test: check  ## all tests; those that need a GPU or minutes are skipped visibly
	$(BIN)/pytest -n auto --dist loadfile

test-gpu: .venv/dev-installed  ## the complete suite of GPU tests, on a machine with a CUDA device
	$(BIN)/pytest -n 6 tests/kernels; kernels=$$?; \
	$(BIN)/pytest -n 6 -m gpu --ignore tests/kernels && exit $$kernels

torture: .venv/dev-installed  ## the long form of tests/torture: faults at many random moments
	$(BIN)/pytest -n auto --torture tests/torture

check: .venv/dev-installed  ## format, lint and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

docs: .venv/docs-installed  ## the documentation as a static site, with search
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file site/mkdocs.yml
	@echo 'Read it with: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site'

fuzz: .venv/fuzz-installed  ## each reader for FUZZ_SECONDS, guided by coverage; crashes are kept
	@failed=; for name in $(FUZZ_TARGETS); do \
	  $(BIN)/python -m tests.fuzz.run_atheris $$name $(FUZZ_SECONDS) build/fuzz || failed="$$failed $$name"; \
	done; test -z "$$failed" || { echo "Crashes of:$$failed. Inputs are in build/fuzz/crashes."; exit 1; }

lock: .venv/audit-installed  ## requirements-lock.txt: the core's versions and their SHA-256
	$(BIN)/uv pip compile pyproject.toml --constraint constraints.txt --universal \
	  --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url \
	  --quiet --output-file requirements-lock.txt

audit: .venv/audit-installed  ## known vulnerabilities of the locked versions
	$(BIN)/pip-audit --strict --disable-pip --require-hashes --requirement requirements-lock.txt || \
	  { echo 'pip-audit found something, or its service cannot be reached: see its lines above.'; exit 1; }

format: .venv/dev-installed
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

.venv/%-installed: pyproject.toml constraints.txt $(wildcard weights/*/pyproject.toml) | .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$*]' $(MODELS)
	touch $@

.venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "electra needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv demo
