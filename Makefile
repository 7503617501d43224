# setup    the environment in .venv; it needs a Python with venv. All others but clean do this first
# quick    proofs, decisions, and the most common calls: half a minute on 2 processors
# test     all tests but the long ones: some ten minutes on 2 processors
# check    style, types, rules of the project
# format   settle style
# docs     the documentation, in docs/_build/html; warnings are errors
# demo     four processes train a small model, our all_reduce beside Gloo's
# bench    the tables of speeds, beside Gloo and MPI
# nightly  all tests with the lines of src that they run, then what else takes long: some hours
# clean    remove the environment
# CONTRIBUTING.md lists what else can be run, by python -m.
PYTHON ?= python3
VENV := .venv
# Tests start hundreds of processes: where this variable is set, each of them would compile all sources again.
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin
FUZZ_S ?= 300

TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: setup quick test check format docs demo bench nightly clean
setup: $(VENV)/ready

# The CPU build of torch comes first: what the package index has is the CUDA build, some gigabytes.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --retries 1 --extra-index-url $(TORCH_INDEX) torch
	$(PIP) --editable '.[dev]'
	touch $@

$(VENV)/ready-docs: $(VENV)/ready
	$(PIP) --editable '.[docs]'
	touch $@

$(VENV)/ready-bench: $(VENV)/ready
	$(PIP) --editable '.[bench]'
	$(PYTHON) -m venv $(VENV)/impi  # Intel MPI's wheel has the names of MPICH's files
	-$(VENV)/impi/bin/pip install --quiet impi-rt
	touch $@

$(VENV)/ready-integrations: $(VENV)/ready
	$(PIP) --editable '.[integrations]'
	-$(PIP) 'torchft>=0.2'  # not for all systems; without it its test is skipped
	-DS_BUILD_OPS=0 $(PIP) --no-build-isolation 'deepspeed>=0.19'  # it is built, with the torch that is here
	touch $@

demo: $(VENV)/ready
	$(BIN)/python -m examples.demo

# Two processes run the tests, each with ranks of its own: tests wait more than they compute.
JOBS ?= 2
TESTS := -m pytest --instafail --numprocesses $(JOBS) --dist loadfile

quick: $(VENV)/ready
	@echo "Proofs, decisions, and the most common calls: half a minute on 2 processors."
	$(BIN)/python $(TESTS) --maxfail 10 -m "quick and not long"

test: $(VENV)/ready
	@echo "All tests but the long ones: some ten minutes on 2 processors. Failures are shown as they happen."
	$(BIN)/python $(TESTS) --reruns 1 --durations=60 -m "not long"

check: $(VENV)/ready
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python -m pytest -m quick tests/house/test_house.py

format: $(VENV)/ready
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: $(VENV)/ready-docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --builder html docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: $(VENV)/ready-bench
	$(BIN)/python -m benchmarks.collectives --output benchmarks/results/{vendor}_collectives.json
	$(BIN)/python -m benchmarks.collectives --late --busy 0,2 --output benchmarks/results/{vendor}_late.json
	$(BIN)/python -m benchmarks.figures

nightly: $(VENV)/ready
	$(BIN)/coverage erase
	NIGHTLY=1 $(BIN)/coverage run $(TESTS) --reruns 1 --durations=30
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort cover
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/python -m tests.mutants
	MATRIX=full $(BIN)/python -m pytest tests/matrix
	$(BIN)/python -m tests.fuzz programs --seconds $(FUZZ_S)
	$(BIN)/python -m tests.fuzz deaths --seconds $(FUZZ_S)

clean:
	rm -rf $(VENV)
