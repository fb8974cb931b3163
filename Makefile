# Everything from a fresh clone: Python 3.11 (later Pythons work too, without DGL), make and g++ are all that is needed.
#
#   make demo    train a small GCN on 4 CPU ranks and compare with 1 rank
#   make test    the test suite, without the slow tests, by one worker more than there are cores (WORKERS=0: in one process);
#                make test-all: with them, but for most cases of big tables; make test-matrix: those, too
#   make test-oldest    make test with the lowest versions of constraints-oldest.txt, in an environment of its own
#   make test-clients    libraries of potentials and meshes on ranks, nightly; make clients: only their environments, in .clients/
#   make smoke   half a minute for whoever changes the code: a plan, 2 ranks, the losses of 1 rank
#   make lint    ruff, check and format        make types   mypy
#   make docs    the documentation, into site/
#   make kernels    compile the CUDA kernels (no GPU needed) and store their PTX
#   make gpu-check    the tests that need a GPU, and the benchmark on it (GPU_PYTHON: a Python with dgcl, torch and pytest)
#
# All of it runs in a virtual environment of its own (VENV), which is made once and re-used until pyproject.toml or
# constraints.txt changes. Without an NVIDIA GPU the CPU build of torch saves a download of some GB:
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo

VENV ?= .venv
PYTHON ?= $(shell for p in python3.11 python3 python; do $$p -c $(AT_LEAST_311) 2>/dev/null && echo $$p && break; done)
PIP_FLAGS ?= -qq
CONSTRAINTS ?= constraints.txt
# One more than the cores: tests of faults and hosts wait for deadlines much of their time.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PYTEST_FLAGS ?=
# Groups of libraries that agree, each a folder of packages beside those of the virtual environment.
CLIENTS := $(patsubst tests/clients/%.txt,.clients/%,$(wildcard tests/clients/*.txt))
GPU_PYTHON ?= python3
GPU_CHECK_FLAGS ?=
AT_LEAST_311 := 'import sys; sys.exit(sys.version_info < (3, 11))'

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install $(PIP_FLAGS) -c $(CONSTRAINTS)
READY := $(VENV)/.dgcl-ready
DOCS_READY := $(VENV)/.dgcl-docs-ready

# Without this the first import of dgl writes a file into the home folder.
export DGLBACKEND := pytorch

# Ranks that are processes import our files some hundred times: their bytecode is kept, whatever the caller's shell says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo smoke test test-all test-oldest test-matrix coverage clients test-clients lint types docs kernels cuda-tools gpu-check format owner pypi-readme clean
.DELETE_ON_ERROR:

demo: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node=4 examples/train.py --check

smoke: $(READY)
	$(BIN)/dgcl plan --synthetic reddit --topology dgx1 --compare direct,spst
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node=2 examples/train.py --check

test: $(READY)
	@$(BIN)/dgcl warmup
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow" $(PYTEST_FLAGS)

test-all: $(READY)
	@$(BIN)/dgcl warmup
	$(BIN)/python -m pytest -n $(WORKERS) -m "not matrix" $(PYTEST_FLAGS)

# What the tests of topology/ reach of it: a gate that takes a minute (97 % in November 2026).
coverage: $(READY)
	rm -f .coverage .coverage.*
	$(BIN)/python -m coverage run --source=topology -m pytest -n 0 -q -m "not slow" tests/topology
	$(BIN)/python -m coverage combine -q && $(BIN)/python -m coverage report --fail-under=95

test-oldest:
	$(MAKE) test VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt

test-matrix: $(READY)
	@$(BIN)/dgcl warmup
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_FLAGS)

clients: $(CLIENTS)

# Libraries that cannot be had are skipped, by name. Some bring a package "tests", which would hide ours.
.clients/%: tests/clients/%.txt $(READY)
	@$(BIN)/python -m pip --disable-pip-version-check install $(PIP_FLAGS) --no-deps --no-build-isolation --target $@ -r $< || echo "not all of $< can be had" >&2
	@rm -rf $@/tests && mkdir -p $@ && touch $@

test-clients: $(CLIENTS)
	@for group in $(CLIENTS); do \
	  PYTHONPATH=$$group OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 tests/clients/run.py --junitxml=build/clients/$$(basename $$group).xml $(PYTEST_FLAGS) || failed=1; \
	done; exit $${failed:-0}

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)
	$(BIN)/mypy

docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

kernels: $(READY)
	$(BIN)/python -m dgcl.kernels.cuda_ptx

# ptxas, NVVM and cuda.h from PyPI, for machines without the CUDA toolkit; CUDA_HOME is then build/cuda/nvidia/cuda_nvcc.
cuda-tools: $(READY)
	@$(PIP) --no-deps --target build/cuda nvidia-cuda-nvcc-cu12==12.9.86 nvidia-cuda-runtime-cu12==12.9.79

# Machines with a GPU bring a Python of their own, with a CUDA build of torch; nothing is installed or fetched here.
gpu-check:
	$(GPU_PYTHON) -m pytest -m gpu -n 0 -rs $(GPU_CHECK_FLAGS)
	$(GPU_PYTHON) -m dgcl bench --device cuda

# A virtual environment whose interpreter is gone (moved folder, upgraded Python) is made anew.
$(READY): pyproject.toml $(CONSTRAINTS)
	@$(or $(PYTHON),false) -c $(AT_LEAST_311) || \
	  { echo "no Python 3.11 or later found; name one with: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing into $(VENV) (once; some 1.5 GB with the CPU build of torch)"
	@$(PIP) 'setuptools>=77'
	@$(PIP) --no-build-isolation -e '.[dgl,pyg,viz,dev]'
	@$(BIN)/dgcl warmup
	@touch $@

$(DOCS_READY): $(READY)
	@$(PIP) --no-build-isolation -e '.[docs]'
	@touch $@

# The account that owns the repository, wherever its name stands: make owner OWNER=name
owner:
	@test -n "$(OWNER)" || { echo "name the account: make owner OWNER=name" >&2; exit 1; }
	sed -i '/^#/! s|\bOWNER\b|$(OWNER)|g' .github/CODEOWNERS packaging/conda/meta.yaml
	sed -i '/^\[project.urls\]/,/^$$/ s|\bOWNER\b|$(OWNER)|g' pyproject.toml

# Links of README that lead somewhere on PyPI, too: to the files of TAG. The release does it; do not commit it.
pypi-readme:
	@url=$$(sed -n 's/^Source = "\(.*\)"/\1/p' pyproject.toml) && sed -i -E \
	  -e "s#(!\[[^]]*\]\()docs/#\1$$url/raw/$(TAG)/docs/#" -e "s#\]\((docs/|[A-Z]+(\.md)?\))#]($$url/blob/$(TAG)/\1#g" README.md

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache
