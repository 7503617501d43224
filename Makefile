# Everything below makes its own environment in .venv; all it needs is a Python with venv, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test test-integrations check matrix bench bench-torch calls format clean test-torch
help:
	@echo "make demo    four processes train a small model, our all_reduce beside Gloo's"
	@echo "make test    the tests"
	@echo "make test-integrations   programs of accelerate, Lightning, transformers and torchmetrics (adds these)"
	@echo "make check   style, types, house rules"
	@echo "make matrix  every call with every dtype, op and layout, on 1 to 8 ranks: 377,000 cases, some twenty minutes"
	@echo "make test-torch   the tests of torch.distributed on our backend, also against Gloo"
	@echo "make bench   the table of speeds (adds mpi4py, Open MPI and MPICH to the environment)"
	@echo "make bench-torch  torch.distributed with our backend beside Gloo: every call, and training steps"
	@echo "make calls   docs/calls.md: what we, Gloo and MPI do with every call, dtype and op"

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

$(VENV)/ready-bench: $(VENV)/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	touch $@

$(VENV)/ready-integrations: $(VENV)/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[integrations]'
	touch $@

demo: $(VENV)/ready
	$(BIN)/unisono demo

test: $(VENV)/ready
	$(BIN)/python -m pytest

test-torch: $(VENV)/ready
	$(BIN)/python -m pytest tests/torch_backend

test-integrations: $(VENV)/ready-integrations
	$(BIN)/python -m pytest tests/integrations/check_programs.py

check: $(VENV)/ready
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/house

matrix: $(VENV)/ready
	$(BIN)/python -m tests.matrix.full
	MATRIX=full $(BIN)/python -m pytest tests/matrix/test_large.py

bench: $(VENV)/ready-bench
	$(BIN)/python -m benchmarks.collectives --output benchmarks/RESULTS.md --plot benchmarks/all_reduce.svg

bench-torch: $(VENV)/ready
	$(BIN)/python -m benchmarks.torch_backend --output benchmarks/TORCH.md

calls: $(VENV)/ready-bench
	$(BIN)/python -m benchmarks.supported_calls --output docs/calls.md

format: $(VENV)/ready
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:
	rm -rf $(VENV)
