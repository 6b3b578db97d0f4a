# `make fuzz` and `make test` set up all they need in .venv, then run.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
TIME ?= 75s
SEED ?= 0

.PHONY: fuzz test lint unit bench clean

# Finding bugs is the fuzzer's job, so exit status 1 (findings) is a success here.
fuzz: $(READY)
	@$(BIN)/cclfuzz run --backend gloo --time $(TIME) --seed $(SEED) || [ $$? -eq 1 ]

test: lint unit

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

bench: $(READY)
	$(BIN)/python benches/bench.py

$(READY): pyproject.toml ci/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint ci/constraints.txt --editable '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info runs
