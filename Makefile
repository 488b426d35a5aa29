# Everything runs in .venv, which `make setup` makes from requirements.lock; bare `make` prints the targets.
# You can repeat every target, and run it as root.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
LOWEST := build/lowest
STAMP := $(VENV)/.installed
PYTHONS := $(or $(PYTHON),python3 python3.11 python3.12 python3.13 python3.14)
PIP := $(BIN)/python -m pip --disable-pip-version-check
TIERS := unit property integration acceptance faults browser cluster plans
SOURCES := $(wildcard executor/joex operator/joex_operator tests benchmarks examples/demo scripts)
# More arguments for what a target runs: make test ARGS="-k fairness -x"
ARGS ?=

.PHONY: help setup demo docs test test-lowest test-kind test-node soak chaos $(TIERS:%=test-%) check check-code check-generated check-types check-types-win32 format bench bench-docs lock build clean FORCE

help: ## print the targets
	@echo "Targets (demo, docs, test, chaos, bench and lock pass ARGS=\"...\" on to the program that they run):"
	@awk -F ' ## ' '/^[^\t#.].*: .*## / { sub(/:.*/, "", $$1); printf "  %-16s %s\n", $$1, $$2 }' Makefile
	@echo "  test-TIER        run one tier: $(TIERS)"

setup: $(STAMP) ## make .venv with all requirements; does nothing if it is up to date
	@echo "setup: $(VENV) is ready"

# If the Python of .venv is gone, make it again.
$(STAMP): requirements.lock pyproject.toml $(if $(shell test -x $(BIN)/python && echo yes),,FORCE)
	@works() { "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }; \
	if works $(BIN)/python && $(PIP) --version >/dev/null 2>&1; then \
		echo "setup: keeping $(VENV)"; \
		exit 0; \
	fi; \
	for python in $(PYTHONS); do \
		if works "$$python"; then \
			echo "setup: making $(VENV) with $$python, $$("$$python" --version)"; \
			"$$python" -m venv --clear $(VENV) && exit 0; \
			echo "setup: '$$python -m venv' failed; some systems ship it in a package of its own, python3-venv" >&2; \
			exit 1; \
		fi; \
	done; \
	echo "setup: no Python 3.11 or newer among: $(PYTHONS); name one with: make setup PYTHON=..." >&2; \
	exit 1
	@echo "setup: installing requirements.lock"
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock | $(PIP) install --quiet --require-hashes --requirement /dev/stdin
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --requirement requirements.lock || { \
		echo "setup: uv can't; trying with pip, which knows the mirrors of pip.conf"; \
		$(PIP) install --quiet --require-hashes --requirement requirements.lock; \
	}
	@echo "setup: installing joex from this folder, editable"
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

FORCE:

demo: setup ## see joex share its workers fairly, on a PostgreSQL of its own
	$(BIN)/python -m examples.demo $(ARGS)

# Without ARGS, several sessions of pytest run side by side; with ARGS, one session.
# The first run on a machine builds the programs of the cluster tier in the background, which takes minutes.
# If the build fails, the cluster tier reports it.
test: setup ## run every test, and say how many of each tier have passed
	$(BIN)/python -m $(if $(strip $(ARGS)),pytest -p no:cacheprovider --durations=10 $(ARGS),tests.support.lanes)

# The libraries of requirements-lowest.lock warn of each other, hence -W. One test needs a newer pydantic: before 2.14.3,
# it counts the sign of the longest whole numbers as a digit. Two tests are about the server alone, which is the same
# in both locks, and keep it busy for 16 s. The operator's libraries have no wider bounds, and the lanes of `make test` load
# none of these libraries.
test-lowest: setup ## run a quick set of tests on the oldest libraries that the bounds of pyproject.toml allow
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(LOWEST)
	$(BIN)/uv pip install --quiet --python $(LOWEST) --require-hashes --requirement requirements-lowest.lock
	$(BIN)/hatchling build --target wheel --directory $(LOWEST)/dist
	$(BIN)/uv pip install --quiet --python $(LOWEST) --no-deps $(LOWEST)/dist/*.whl
	$(LOWEST)/bin/python -m pytest -p no:cacheprovider -W default $(ARGS) \
		-k "not pg16 and not joex_operator and not whole_numbers_come_back and not longer_than_a_text and not the_largest_limit_is" \
		--ignore tests/unit/joex_operator --ignore tests/unit/test_loaded.py --ignore tests/unit/test_lanes.py tests/unit tests/property/test_tuples.py tests/property/test_timer.py \
		$(addprefix tests/integration/test_,$(addsuffix .py,http keyed periodic submit sync testing)) \
		tests/acceptance/test_executor_outcomes.py

test-kind: setup ## run the cluster tier on kind, with the image of the Dockerfile; needs Docker and kind
	$(BIN)/python -m pytest -p no:cacheprovider --durations=10 -m cluster --cluster=kind $(ARGS)

# Half an hour the first time, mostly for building images and programs; ten minutes afterwards.
test-node: setup ## run Joex on a real node: kubelet, containerd, the image of the Dockerfile; needs root and Debian
	@$(BIN)/python -m tests.support.node $(ARGS)

# A failure does not end the night. Flaky is red: a second run would hide a breach that random faults have found.
soak: setup ## run every test at length, on all versions of PostgreSQL and at each isolation level: hours, for the night
	@export JOEX_TEST_SOAK=1; failed=0; \
	$(BIN)/python -m tests.support.lanes --flaky-is-red || failed=1; \
	for isolation in "repeatable read" serializable; do \
		echo "soak: default isolation: $$isolation"; \
		JOEX_TEST_ISOLATION="$$isolation" $(BIN)/python -m tests.support.lanes --flaky-is-red -m integration || failed=1; \
	done; \
	exit $$failed

chaos: setup ## break Joex at random for ten minutes, and hold it to its guarantees; ARGS=--help lists the arguments
	@$(BIN)/python -m tests.support.chaos $(ARGS)

$(TIERS:%=test-%): test-%: setup
	$(BIN)/python -m pytest -p no:cacheprovider --durations=10 -m $* $(ARGS)

# .ci/run runs two of these side by side. mypy takes the longest, so it begins early.
check: check-code check-types docs check-types-win32 check-generated ## format, lint, types, import contracts, dependencies, generated files, docs

check-code: setup
	$(BIN)/ruff format --check --quiet --diff
	$(BIN)/ruff check
	$(BIN)/lint-imports --no-logo
	$(PIP) check

check-types: setup
	$(BIN)/mypy $(SOURCES)

check-types-win32: setup
	$(BIN)/mypy --platform win32 --no-warn-unreachable --cache-dir .mypy_cache/win32 executor/joex

# A generated file has a module scripts/generate_NAME.py, whose --check fails if the file is stale.
check-generated: setup ## compare the generated files with their sources
	@set -e; for script in $(wildcard scripts/generate_*.py); do \
		echo "$(BIN)/python $$script --check"; $(BIN)/python $$script --check; \
	done

# A full build each time, which takes seconds: the reference pages come from the code, whose changes Sphinx does not notice.
# ARGS="-b linkcheck" also checks the links to other sites, which needs a network.
docs: setup ## build the site of the docs, build/docs/index.html; a warning or a broken link is an error
	$(BIN)/sphinx-build --fresh-env --fail-on-warning --keep-going --quiet -d build/doctrees $(ARGS) docs build/docs

format: setup ## format the code and apply the safe fixes
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

bench: setup ## run the benchmarks; ARGS=--help lists them
	$(BIN)/python -m benchmarks $(ARGS)

bench-docs: setup ## run the benchmarks, and write docs/why/benchmarks.md and its plots
	$(BIN)/python -m benchmarks --docs $(ARGS)

UV_COMPILE := UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile $(ARGS) --quiet \
	--universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links
PEERS := benchmarks/peers/requirements
EXTRAS_OF_LOWEST := $(foreach extra,django embedded executor plot sqlalchemy test,--extra $(extra))

lock: setup ## make the lock files from pyproject.toml and for the peers; ARGS=--upgrade takes the newest releases
	$(UV_COMPILE) pyproject.toml --extra dev --output-file requirements.lock
	$(UV_COMPILE) pyproject.toml --extra operator --extra console --constraint requirements.lock --output-file requirements-runtime.lock
	$(UV_COMPILE) pyproject.toml $(EXTRAS_OF_LOWEST) --resolution lowest-direct --output-file requirements-lowest.lock
	$(UV_COMPILE) $(PEERS).in --output-file $(PEERS).lock
	$(subst 3.11,3.12,$(UV_COMPILE)) $(PEERS)-oban.in --output-file $(PEERS)-oban.lock

build: setup ## make the wheel and the sdist, in dist/; the same source gives the same bytes
	$(BIN)/hatchling build

clean: ## remove .venv and all other files that make has made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis
	find $(wildcard executor operator tests benchmarks examples) -name __pycache__ -type d -prune -exec rm -rf {} +
