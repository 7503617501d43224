# Everything below makes its own environment in .venv; all it needs is a Python with venv, and make.
PYTHON ?= python3
VENV := .venv
# Tests start hundreds of processes: where this variable is set, each of them would compile all sources again.
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin

TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test quick nightly nightly-tests aarch64 mutants docs notebooks test-integrations check matrix bench bench-torch bench-busy bench-late bench-first-call bench-serving fuzz fuzz-faults chaos faults kills bench-hosts bench-host-steps host-faults calls screenshots format clean test-torch
help:
	@echo "make demo    four processes train a small model, our all_reduce beside Gloo's"
	@echo "make quick   proofs, decisions, and the most common calls: a minute on 2 processors"
	@echo "make test    all tests but the long ones, the quick ones first: some ten minutes on 2 processors"
	@echo "make nightly all tests, then aarch64, mutants, matrix, chaos, fuzz and fuzz-faults: some hours"
	@echo "make aarch64 tests on AArch64, which QEMU emulates: eight minutes, and a download of 3 GB the first time; root is not needed"
	@echo "make mutants make mended mistakes again, and see which ring of tests finds each"
	@echo "make docs    the documentation, in docs/_build/html; warnings are errors"
	@echo "make notebooks   execute the notebooks of the documentation"
	@echo "make test-integrations   programs of accelerate, DeepSpeed, Lightning, Ray, torchft, transformers, torchmetrics (adds these)"
	@echo "make check   style, types, house rules"
	@echo "make matrix  every call with every dtype, op and layout, on 1 to 8 ranks: 296,000 cases, some twenty minutes"
	@echo "make test-torch   the tests of torch.distributed on our backend, also against Gloo"
	@echo "make bench   the table of speeds, and bench-late (adds mpi4py and three MPIs; DeepSpeed joins where it is installed)"
	@echo "make bench-torch  torch.distributed with our backend beside Gloo: every call, and training steps"
	@echo "make bench-busy   two ranks beside processes that compute, our backend beside Gloo: some minutes"
	@echo "make bench-late   two to eight ranks of which one is late, our backend beside Gloo and three MPIs: some minutes"
	@echo "make bench-first-call   what the first call of a fresh process costs, by part, beside Gloo: two minutes"
	@echo "make fuzz    random programs for SECONDS=300, from SEED=...; prints a small one that goes wrong"
	@echo "make fuzz-faults   the same with deaths, stops and aborts at random moments, and bad networks between hosts"
	@echo "make bench-serving   steps of a server that decodes, our backend beside Gloo, on one host and several: some minutes"
	@echo "make chaos   every fault at every row, and faults in live ranks: some minutes"
	@echo "make faults  faults in groups of Gloo, watched and not"
	@echo "make kills   ten minutes of training with random kills, then the same without: are the losses equal?"
	@echo "make host-faults   faults of ranks, hosts and links, in network namespaces: half an hour; needs root and iproute2"
	@echo "make bench-hosts   collectives over hosts in network namespaces beside Gloo; needs root and iproute2"
	@echo "make bench-host-steps   training steps over such hosts beside Gloo; some minutes"
	@echo "make calls   docs/calls.md: what we, Gloo and MPI do with every call, dtype and op"
	@echo "make screenshots   the pictures of the player in docs/; needs Chromium"

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

$(VENV)/ready-ucx: $(VENV)/ready
	$(PIP) --editable '.[ucx]'
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
PYTEST := $(BIN)/python -m pytest --instafail --numprocesses $(JOBS) --dist loadfile

test: $(VENV)/ready
	@echo "All tests but the long ones: some ten minutes on 2 processors. Failures are shown as they happen."
	$(PYTEST) --reruns 1 --durations=60 -m "not long"

quick: $(VENV)/ready
	@echo "Proofs, decisions, and the most common calls: a minute on 2 processors."
	$(PYTEST) --maxfail 10 -m "quick and not long"

nightly: nightly-tests aarch64 mutants matrix chaos fuzz fuzz-faults

nightly-tests: $(VENV)/ready-ucx
	NIGHTLY=1 $(PYTEST) --reruns 1 --durations=30

aarch64: $(VENV)/ready
	TORCH_INDEX="$(TORCH_INDEX)" $(BIN)/python -m tests.aarch64

mutants: $(VENV)/ready
	$(BIN)/python -m tests.mutants

docs: $(VENV)/ready-docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --builder html docs docs/_build/html
	@echo "docs/_build/html/index.html"

notebooks: $(VENV)/ready
	$(BIN)/python -m pytest --instafail tests/docs/test_notebooks.py

test-torch: $(VENV)/ready
	$(BIN)/python -m pytest tests/integrations/torch

test-integrations: $(VENV)/ready-integrations
	$(BIN)/python -m pytest -rP --durations=0 tests/integrations/check_programs.py tests/integrations/ray

check: $(VENV)/ready
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/house/test_house.py

matrix: $(VENV)/ready
	$(BIN)/python -m tests.matrix.full
	MATRIX=full $(BIN)/python -m pytest tests/matrix/test_large.py

bench: $(VENV)/ready-bench bench-late
	$(BIN)/python -m benchmarks.collectives --output benchmarks/results/{vendor}.md \
		--plot benchmarks/results/{vendor}_all_reduce.svg

bench-torch: $(VENV)/ready
	$(BIN)/python -m benchmarks.torch_backend --output benchmarks/results/{vendor}_torch.md

bench-busy: $(VENV)/ready
	$(BIN)/python -m benchmarks.busy calls --output benchmarks/results/{vendor}_busy.md

bench-late: $(VENV)/ready-bench
	$(BIN)/python -m benchmarks.busy late --output benchmarks/results/{vendor}_late.md

bench-first-call: $(VENV)/ready
	$(BIN)/python -m benchmarks.first_call --output benchmarks/results/{vendor}_first_call.md

bench-serving: $(VENV)/ready
	$(BIN)/python -m benchmarks.busy serving --output benchmarks/results/{vendor}_serving.md

SECONDS ?= 300
fuzz: $(VENV)/ready
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --seed "$(SEED)"

fuzz-faults: $(VENV)/ready
	$(BIN)/python -m tests.fuzz.deaths --seconds $(SECONDS) --seed "$(SEED)"
	$(BIN)/python -m tests.fuzz.network --seconds $(SECONDS) --seed "$(SEED)"

chaos: $(VENV)/ready
	$(BIN)/python -m benchmarks.chaos --output benchmarks/results/{vendor}_chaos.md

faults: $(VENV)/ready
	$(BIN)/python -m benchmarks.faults.watched --output benchmarks/results/{vendor}_watched.md

kills: $(VENV)/ready
	$(BIN)/python -m benchmarks.kills --output benchmarks/results/{vendor}_kills.md

host-faults: $(VENV)/ready
	$(BIN)/python -m benchmarks.host_faults --output benchmarks/results/{vendor}_host_faults.md

bench-hosts: $(VENV)/ready
	$(BIN)/python -m benchmarks.hosts --output benchmarks/results/{vendor}_hosts.md

bench-host-steps: $(VENV)/ready
	$(BIN)/python -m benchmarks.host_steps --output benchmarks/results/{vendor}_host_steps.md

screenshots: $(VENV)/ready
	$(BIN)/unisono draw all_reduce.ring --ranks 4 -o docs/ring.svg
	$(BIN)/python -m tests.schedule.draw.screenshots

calls: $(VENV)/ready-bench
	$(BIN)/python -m benchmarks.supported_calls --output docs/calls.md

format: $(VENV)/ready
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:
	rm -rf $(VENV)
