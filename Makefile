# Each target does everything that it needs: on a fresh machine `make demo` and `make test` create the
# environment first, `make demo` with the base install alone. Stamps keyed by the requirements files
# make the next call start at once.

PYTHON ?= python3
PYTHONS := 3.11 3.12 3.13 3.14
VENV := $(CURDIR)/.venv
BASE_STAMP := $(VENV)/.base-$(shell cat requirements-base.lock setup.py | cksum | cut -d' ' -f1)
STAMP := $(VENV)/.installed-$(shell cat requirements.lock setup.py | cksum | cut -d' ' -f1)

# torch is installed by its version alone, without a hash: it comes as a build for a CPU or for one of
# several versions of CUDA, each of which brings packages of its own.
NOT_LOCKED := torch triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas \
	nvidia-cuda-cupti nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft \
	nvidia-cufile nvidia-curand nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 \
	nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx

# DeepSpeed compiles a small op for training on a CPU: once, inside the environment, with its ninja.
export TORCH_EXTENSIONS_DIR := $(VENV)/torch_extensions
export PATH := $(VENV)/bin:$(PATH)
unexport PYTHONPATH

.PHONY: base env demo demo-classification demo-spelling known-answers test test-environments test-long test-lowest test-slow test-faults test-fuzz test-slurm test-gpu lint lock audit format docs notebooks release clean

# The base install: trains and evaluates language models.
base: $(BASE_STAMP)

# The base install, the extras, and what the tests and the checks need.
env: $(STAMP)

$(BASE_STAMP):
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if "%d.%d" % v in "$(PYTHONS)".split() else \
	  "bsmeta needs Python 3.11 to 3.14, and $(PYTHON) is %d.%d: name another, make PYTHON=python3.11 ..." % v)'
	@command -v c++ >/dev/null || { echo "bsmeta needs a C++ compiler for DeepSpeed (Debian: apt-get install g++)" >&2; exit 1; }
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install $$(grep '^torch==' requirements.txt)
	$(VENV)/bin/python -m pip install --require-hashes --no-deps -r requirements-base.lock
	$(VENV)/bin/python -m pip install --no-deps --no-build-isolation -e .
	$(VENV)/bin/python -c 'from bsmeta.training.ranks.distributed_op import prepare_cpu_op; prepare_cpu_op()'
	rm -f $(VENV)/.base-*
	touch $@

$(STAMP): $(BASE_STAMP)
	$(VENV)/bin/python -m pip install --require-hashes --no-deps -r requirements.lock
	rm -f $(VENV)/.installed-*
	touch $@

demo: base
	bash experiments/demo.sh

demo-classification: env
	bash experiments/demo_classification.sh

demo-spelling: env
	bash experiments/demo_spelling.sh

known-answers: env
	python experiments/known_answers.py

# The tests start hundreds of interpreters; where bytecode is not written, each compiles the package.
test test-long: export PYTHONDONTWRITEBYTECODE :=
test: env
	python -m pytest -n 3 --dist worksteal -m "not long and not slow and not slurm and not fuzz and not gpu"

test-long: env
	python -m pytest -n 3 --dist worksteal -m "long and not slow"

# The package in environments of their own: the base install, and the oldest versions that setup.py
# allows but for torch, whose build for this machine is already there.
test-environments: test-lowest
	tests/environments/try_environment.sh base

test-lowest: env
	TORCH=$$(grep '^torch==' requirements.txt) tests/environments/try_environment.sh lowest

test-slow: env
	python -m pytest -m slow

test-faults: env
	python -m pytest -m faults

# Ten minutes of the processor; BSMETA_FUZZ_CPU_S=60 makes it one.
test-fuzz: env
	python -m pytest -m fuzz -s

test-slurm: env
	python -m pytest -m slurm

# About eight minutes on one GPU; where there is none, all are skipped.
test-gpu: env
	python -m pytest -m gpu

lint: env
	ruff check .
	ruff format --check .
	mypy

# After a change of requirements*.txt or setup.py: the exact versions and the hashes of all packages
# they need, and of those that the base install needs; then, for each Python, the oldest versions
# that setup.py allows and that have a build for it. DeepSpeed has none for any.
COMPILE := uv pip compile --no-header --no-annotate --no-emit-index-url --no-emit-find-links --quiet \
	$(NOT_LOCKED:%=--no-emit-package %)
COMPILE_LOCK := $(COMPILE) --universal --python-version 3.11 --generate-hashes
BUILT := $(filter-out deepspeed,$(shell sed -n 's/==.*//p' requirements.txt requirements-dev.txt))
COMPILE_LOWEST := $(COMPILE) --resolution lowest-direct $(BUILT:%=--only-binary %)
lock: env
	$(COMPILE_LOCK) requirements-dev.txt --output-file requirements.lock
	$(COMPILE_LOCK) setup.py --constraint requirements.txt --constraint requirements.lock \
	  --output-file requirements-base.lock
	for python in $(PYTHONS); do \
	  $(COMPILE_LOWEST) setup.py --all-extras --python-version $$python \
	    --output-file constraints/lowest-$$python.txt || exit; \
	done

# Known vulnerabilities of the locked versions; asks PyPI, or another service: AUDIT="-s osv".
audit: env
	uv tool run pip-audit==2.10.1 --requirement requirements.lock --no-deps --disable-pip $(AUDIT)

format: env
	ruff check --fix .
	ruff format .

# Runs the notebooks, and writes their outputs into them.
notebooks: env
	python experiments/run_notebooks.py

docs: env
	python -m bsmeta.reference
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict

# The wheel is built from the sdist, so that the check of its content holds for both.
release: env
	rm -rf build dist
	python -m build --no-isolation
	twine check --strict dist/*
	BSMETA_DIST=dist python -m pytest -q tests/test_packaging.py -m "not slow"

clean:
	rm -rf build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
