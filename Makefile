# make demo   set up .venv, build, and decode with the bundled checkpoint
# make test   the same set-up if needed, then every test
# make sanitize   the kernels under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer
# make mutations   one line of a CUDA kernel wrong at a time: do the tests notice?
# make bench   the benchmarks of single operators
# make lint | format   what Python and C++ sources look like, and Python's types: say | change it
# make clean
#
# Variables: PYTHON (makes the virtual environment), JOBS (test processes), LIMIT (problems in the demo),
# TORCH_INDEX_URL (where pip takes torch from, such as https://download.pytorch.org/whl/cpu), and those of setup.py.

PYTHON ?= python3
JOBS ?= 2
LIMIT ?= 20
TORCH_INDEX_URL ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check -c constraints.txt
# The system's CMake serves where there is one.
CMAKE := $(shell command -v cmake >/dev/null 2>&1 || echo cmake)
CPP = $(shell find csrc tests -name '*.cpp' -o -name '*.cu' -o -name '*.h' -o -name '*.cuh')
SAMPLE := Maya has 14 shells. She finds 9 more at the beach. Then she loses 5 of them. How many shells are left?

.PHONY: demo test sanitize mutations bench lint format clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	@echo; echo "== packed-ss generate"
	@$(BIN)/packed-ss generate "$(SAMPLE)"
	@echo; echo "== packed-ss compare, $(LIMIT) problems"
	@$(BIN)/packed-ss compare --limit $(LIMIT)

test: export OMP_NUM_THREADS = 1
test: $(VENV)/.installed
	@$(BIN)/python -m pytest -n $(JOBS) --benchmark-disable $(ARGS)
	@echo "== the Triton kernels in the interpreter, which takes a process of its own"
	@TRITON_INTERPRET=1 $(BIN)/python -m pytest -n $(JOBS) tests/kernels -k triton $(ARGS)

sanitize: $(VENV)/.installed
	@$(BIN)/python -m tests.host_cuda.sanitize

mutations: $(VENV)/.installed
	@$(BIN)/python -m tests.host_cuda.mutations $(ARGS)

bench: $(VENV)/.installed
	@$(BIN)/python -m pytest bench --benchmark-only $(ARGS)

lint: $(VENV)/.lint
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run --Werror $(CPP)
	@$(BIN)/mypy

format: $(VENV)/.lint
	@$(BIN)/ruff check --fix --exit-zero .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CPP)

clean:
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis .benchmarks packed_ss/_C*.so packed_ss/_build.json
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.torch: constraints.txt
	@echo "== $(VENV): a virtual environment of $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip setuptools wheel ninja pybind11 numpy $(CMAKE)
	@echo "== $(VENV): torch (a large download the first time)"
	@$(PIP) torch $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL))
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml setup.py CMakeLists.txt $(shell find csrc -type f)
	@echo "== $(VENV): packed_ss and what it needs (compiling takes about a minute)"
	@$(PIP) --no-build-isolation --editable ".[test]"
	@$(BIN)/python -c "from packed_ss.ops import native; print('==', native.describe())"
	@touch $@

$(VENV)/.lint: $(VENV)/.installed
	@$(PIP) ruff mypy clang-format
	@touch $@
