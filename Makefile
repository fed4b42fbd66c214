# Everything from a fresh machine with Python and make; the virtual environment is .venv.
#
#   make test PYTHON=python3.12 VENV=.venvs/3.12   another Python, beside the first
#   make test EXTRAS=dev                           planning alone: no PyTorch, its tests are skipped
#   make test TESTS="tests/core/test_tree.py -x"     some tests
#   make laws                                        the tests in memory alone, but for the long ones
#   make soak                                        the laws on five to eight times as many examples,
#                                                    100,000 hostile messages, all systems over six hosts,
#                                                    200 faults, every command ended and scenario run
PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= executor,dev
TESTS ?=
SOAKED := tests/cli tests/executor/test_hostile_messages.py tests/executor/test_hosts_processes.py \
	tests/executor/test_soak_processes.py
# Files with tests that are marked so; the others need not be imported for them.
PROCESSES = $(shell grep --recursive --files-with-matches --include '*.py' mark.processes tests) \
	treepipe/library.py
WORKERS ?= 2
BIN := $(VENV)/bin
READY := $(VENV)/ready-$(EXTRAS)
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt
PYTEST := $(BIN)/python -m pytest
MEMORY := $(PYTEST) --numprocesses $(WORKERS) --dist worksteal
export OMP_NUM_THREADS := 1
# Every worker and every process of a test would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test laws soak pythons bench docs validate check setup constraints clean

demo: setup
	$(BIN)/treepipe demo

# Processes come after the tests in memory, which would take their processors: what they measure is time.
test: setup check
ifeq ($(TESTS),)
	$(MEMORY) -m "laws or long"
	$(PYTEST) -m processes --numprocesses $(WORKERS) --dist loadfile $(PROCESSES)
else
	$(PYTEST) $(TESTS)
endif

laws: setup
	$(MEMORY) -m laws $(TESTS)

soak: setup
	HYPOTHESIS_PROFILE=thorough $(MEMORY) -m "laws or long" --timeout 1200 $(TESTS)
	HYPOTHESIS_PROFILE=thorough $(PYTEST) -m processes --timeout 1200 $(SOAKED)

# Every Python that the README names, as far as it is installed here.
pythons:
	.ci/pythons

bench: setup
	$(BIN)/python -m treepipe.studies.workshop.benchmarks --out bench/results.json

# The tables of keys in the scenario's page, from the schema, and the table of laws.
docs: setup
	$(BIN)/python -m treepipe.studies.workshop.scenario_page docs/scenario.md
	$(BIN)/python -m treepipe.studies.workshop.laws_page docs/laws.md
	$(BIN)/python -m treepipe.studies.workshop.protocol_page docs/protocol.md

validate: setup
	$(BIN)/python -m treepipe.studies.workshop.grid docs

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory --jobs 2 types-3.10 types-3.13
	$(BIN)/mypy docs/mini.py --python-version 3.10

# One process each, which computes on one core.
types-%:
	$(BIN)/mypy -p treepipe --python-version $*

setup: $(READY)

# torch comes first and pinned: a plain requirement would pull gigabytes of CUDA libraries.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(if $(findstring executor,$(EXTRAS)),$(PIP) torch)
	$(PIP) --editable ".[$(EXTRAS)]"
	touch $(READY)

# Pins for all Pythons at once, which pip cannot resolve: uv does, in an environment of its own.
constraints:
	$(PYTHON) -m venv build/uv
	build/uv/bin/python -m pip install --quiet uv
	sed -n '/^#/p' constraints.txt > build/head.txt
	build/uv/bin/uv pip compile --quiet --universal --python-version 3.10 --all-extras \
		--no-annotate --no-header --output-file constraints.txt pyproject.toml
	cat build/head.txt constraints.txt > build/pins.txt
	cp build/pins.txt constraints.txt

clean:
	rm -rf .venv .venvs build *.egg-info
