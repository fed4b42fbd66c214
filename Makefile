# Everything from a fresh machine with Python and make; the virtual environment is .venv.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS := 1

.PHONY: demo test bench validate check setup clean

demo: setup
	$(BIN)/treepipe demo

test: setup check
	$(BIN)/python -m pytest

bench: setup
	$(BIN)/python -m treepipe.studies.benchmarks --out bench/results.json

validate: setup
	$(BIN)/python -m treepipe.studies.validation_grid docs

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p treepipe

setup: .venv/ready

# torch comes first and pinned: a plain requirement would pull gigabytes of CUDA libraries.
.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[executor,dev]"
	touch .venv/ready

clean:
	rm -rf .venv build *.egg-info
