# Every entry makes .venv by itself; all it needs is a Python of 3.11 or newer. The first run takes a minute, later ones none.
#
#   make sweep     measure throughput and latency against the buffer timeout, on Spark's local mode, and write report.html
#   make compiled  compile the data path (a minute); a sweep does so by itself, if there is a C compiler
#   make docs     the documentation's site, build/site; warnings are errors
#   make check     lint, types, and the tests that the change reaches, the nearest first: a minute
#   make test      everything a change has to pass: lint, types, tests
#   make coverage  which branches the fast tests take, by package; processes that they start are not counted
#   make wheels    a release's files in dist/: the source archive, compiled wheels for Python 3.11 to 3.13, one in Python only
#   make mutants   plants known bugs, one at a time, and checks that the tests named beside them fail; some minutes
#
# More arguments: make sweep ARGS="--help"    make test PYTEST_ARGS="-k credit -x"

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
ARGS ?=
PYTEST_ARGS ?=
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# By all processors, and what nobody imports is left out: half of pip's time would go into it.
COMPILE_INSTALLED := $(BIN)/python -m compileall -qq -j 0 -x '/tests/' .venv/lib || true
# Tests of processes and of time wait a good part of theirs: one worker more than there are processors.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 3 ? n + 1 : 4)))

# Containers often set it; then each of the hundreds of processes that the tests start would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: sweep compiled test check test-compiled core-tests lint types pytest mutants format clean docs wheels coverage

sweep: .venv/.compiled
	@$(BIN)/netstack-bench sweep $(ARGS)

compiled: .venv/.compiled

test: lint types pytest

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Exit code 2: on a busy machine a worker of mypy did not start within its three seconds.
types: .venv/.installed-dev
	$(BIN)/mypy --strict --num-workers 2 || { [ $$? = 2 ] && $(BIN)/mypy --strict; }

pytest: .venv/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

mutants: .venv/.installed-dev
	$(BIN)/python tools/mutants.py $(ARGS)

# What touches the data path, on its compiled build; `make test` runs all of it in Python where nothing was compiled.
CORE_TESTS := $(addprefix tests/netstack/,exchange network testing) tests/spec \
	tests/packaging/test_build.py tests/netstack/spark/test_ship.py tests/bench/places/local/test_runner.py tests/bench/places/local/test_pair.py $(wildcard tests/system/test_hostile_*.py) \
	tests/system/test_two_processes.py $(addprefix tests/laws/test_,builder.py builds.py cancellation.py fast_path.py chunks.py credit.py \
	debloating.py emit_batch.py flink_hostile.py flink_replay.py flink_vectors.py pools.py record_framing.py soak.py subpartition.py)

check: .venv/.installed-dev
	@$(BIN)/python tools/check.py $(ARGS)

test-compiled: .venv/.installed-dev .venv/.compiled
	@$(BIN)/python -c 'from netstack import build; assert build.kind == "compiled", build.describe()'
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(CORE_TESTS) $(PYTEST_ARGS)

core-tests:
	@echo $(CORE_TESTS)

docs: .venv/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file tools/docs/mkdocs.yml
	@echo "build/site/index.html"

format: .venv/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

coverage: .venv/.installed-dev
	@$(PIP_INSTALL) --group coverage
	@NETSTACK_PURE=1 COVERAGE_FILE=build/.coverage $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup -m "not slow and not long" --cov=netstack --cov=netstack_transports --cov=netstack_bench --cov-branch \
		--cov-report=json:build/coverage.json $(PYTEST_ARGS); code=$$?; $(BIN)/python tools/coverage_by_package.py build/coverage.json; exit $$code

wheels: .venv/.installed-release
	@$(BIN)/python tools/make_wheels.py $(ARGS)

clean:
	rm -rf .venv dist netstack/_compiled .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .grimp_cache

# The stamp is newer than pyproject.toml once everything in it is installed. `--group` needs pip 25.1.
.venv/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "netstack needs Python 3.11 or newer; none found. Name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Setting up .venv (once) ..." >&2
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	@$(PIP_INSTALL) --upgrade 'pip>=25.1'
	@NETSTACK_PURE=1 $(PIP_INSTALL) --editable '.[arrow,peers,spark]'
	@$(COMPILE_INSTALLED)
	@touch $@

# Compiles nothing when what is there is that of the sources, and leaves Python where there is no C compiler.
.venv/.compiled: .venv/.installed $(wildcard netstack/*/*.py netstack/*/*/*.py netstack/*/*/*.c) tools/compile_core.py
	@$(PIP_INSTALL) --group compile
	@$(BIN)/python tools/compile_core.py
	@touch $@

.venv/.installed-dev: .venv/.installed
	@$(PIP_INSTALL) --group dev
	@$(COMPILE_INSTALLED)
	@touch $@

.venv/.installed-release: .venv/.installed
	@$(PIP_INSTALL) --group release
	@touch $@

.venv/.installed-docs: .venv/.installed
	@$(PIP_INSTALL) --group docs
	@touch $@
