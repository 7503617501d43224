# Everything below makes its own environment in .venv; all it needs is a Python with venv, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test check bench format clean
help:
	@echo "make demo    four processes train a small model, our all_reduce beside Gloo's"
	@echo "make test    the tests"
	@echo "make check   style, types, house rules"
	@echo "make bench   the table of speeds (adds mpi4py, Open MPI and MPICH to the environment)"

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

$(VENV)/ready-bench: $(VENV)/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	touch $@

demo: $(VENV)/ready
	$(BIN)/unisono demo

test: $(VENV)/ready
	$(BIN)/python -m pytest

check: $(VENV)/ready
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_house.py

bench: $(VENV)/ready-bench
	$(BIN)/unisono bench --output benchmarks/RESULTS.md --plot benchmarks/all_reduce.svg

format: $(VENV)/ready
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:
	rm -rf $(VENV)
