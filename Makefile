# Each target does everything that it needs: on a fresh machine `make demo` and `make test` create the
# environment first. A stamp keyed by the requirements files makes the next call start at once.

PYTHON ?= python3
VENV := $(CURDIR)/.venv
STAMP := $(VENV)/.installed-$(shell cat requirements.txt requirements-dev.txt setup.py | cksum | cut -d' ' -f1)

# DeepSpeed compiles a small op for training on a CPU: once, inside the environment, with its ninja.
export TORCH_EXTENSIONS_DIR := $(VENV)/torch_extensions
export PATH := $(VENV)/bin:$(PATH)
unexport PYTHONPATH

.PHONY: env demo demo-classification demo-spelling known-answers test test-slow test-faults test-slurm lint format docs release clean

env: $(STAMP)

$(STAMP):
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 12) else \
	  "bsmeta needs Python 3.11 or 3.12, and $(PYTHON) is %d.%d: name another, make PYTHON=python3.11 ..." % v)'
	@command -v c++ >/dev/null || { echo "bsmeta needs a C++ compiler for DeepSpeed (Debian: apt-get install g++)" >&2; exit 1; }
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install $$(grep '^torch==' requirements.txt)
	$(VENV)/bin/python -m pip install -r requirements-dev.txt
	$(VENV)/bin/python -m pip install --no-deps --no-build-isolation -e .
	$(VENV)/bin/python -c 'from bsmeta.training.distributed import prepare_cpu_op; prepare_cpu_op()'
	rm -f $(VENV)/.installed-*
	touch $@

demo: env
	bash experiments/demo.sh

demo-classification: env
	bash experiments/demo_classification.sh

demo-spelling: env
	bash experiments/demo_spelling.sh

known-answers: env
	python experiments/known_answers.py

# The tests start hundreds of interpreters; where bytecode is not written, each compiles the package.
test: export PYTHONDONTWRITEBYTECODE :=
test: env
	python -m pytest -n 3 --dist worksteal -m "not slow and not slurm"

test-slow: env
	python -m pytest -m slow

test-faults: env
	python -m pytest -m faults

test-slurm: env
	python -m pytest -m slurm

lint: env
	ruff check .
	ruff format --check .
	mypy

format: env
	ruff check --fix .
	ruff format .

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
