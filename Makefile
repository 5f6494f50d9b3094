.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
SECONDS ?= 60
TEST_WORKERS ?= 4
QUICK_WORKERS ?= 2
QUICK := tests/model tests/scheduler tests/trace $(addprefix tests/db/test_,at_once.py isolation.py listener.py pool.py) $(addprefix tests/worker/test_,queues.py settling.py worker.py) $(addprefix tests/http/test_api_,agents.py automations.py runs.py sessions.py) tests/test_service.py tests/test_settings.py
SEED ?=
# What a Python must be, and what an earlier try may have left half made, for want of python3-venv say.
NEW := import sys; sys.version_info >= (3, 11) or sys.exit("Rota needs Python 3.11 or newer, and $(PYTHON) is older. Name another: PYTHON=python3.12")
FIT := $(NEW); import pip
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
# A registry that fails to answer once looks like one that never had the package: it is asked again.
AGAIN_AFTER ?= 5
FETCH = $(PIP) --require-hashes $(1) || { echo "Once more in $(AGAIN_AFTER) s …"; sleep $(AGAIN_AFTER); $(PIP) --require-hashes $(1); }
# Where the advisory database cannot be reached, the audit warns; STRICT=1 makes it fail.
STRICT ?=
AUDIT = $(if $(STRICT),--strict)
LOCK := $(BIN)/uv pip compile -q --universal --generate-hashes --no-emit-index-url --python-version 3.11

help: ## Show what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# Two stamps: running Rota needs few packages, working on it needs more.
$(VENV)/.run: pyproject.toml requirements/build.txt requirements/run.txt build_hooks/vendor_htmx.py
	@$(BIN)/python -c '$(FIT)' 2>/dev/null || { $(PYTHON) -c '$(NEW)' && $(PYTHON) -m venv --clear $(VENV); }
	@echo "Installing Rota into $(VENV) …"
	@$(call FETCH,-r requirements/build.txt -r requirements/run.txt)
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	@echo "Installing the test tools into $(VENV) …"
	@$(call FETCH,-r requirements/dev.txt)
	@touch $@

setup: $(VENV)/.dev ## Install everything into .venv, nothing else

up: $(VENV)/.run ## Install and run Rota on its embedded PostgreSQL
	@exec $(BIN)/rota up $(ARGS)

# Hundreds of processes are started, and each would compile Rota anew where nothing may be kept.
test quick soak: export PYTHONDONTWRITEBYTECODE :=

# Twice as many test workers as processors: tests of processes wait most of the time.
test: $(VENV)/.dev ## Install and run the whole test suite
	@sh scripts/system_packages.sh
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --ignore tests/soak $(ARGS)

quick: $(VENV)/.dev ## Run the tests to use while working: no browsers, no processes of Rota, under 90 seconds
	$(BIN)/python -m pytest -n $(QUICK_WORKERS) $(QUICK) $(ARGS)

soak: $(VENV)/.dev ## Break everything at random for SECONDS (60) by a SEED, and check the promises, for every kind in full
	ROTA_TEST_SOAK_SECONDS=$(SECONDS) ROTA_TEST_SOAK_SEED=$(SEED) $(BIN)/python -m pytest -s tests/soak $(ARGS)
	ROTA_TEST_EVERY_KIND=1 $(BIN)/python -m pytest tests/executors/test_conformance_*.py $(ARGS)
	$(BIN)/python -m pytest --hypothesis-profile anew tests/model tests/http/test_pages.py tests/executors/test_events.py $(ARGS)

check: $(VENV)/.dev ## Format, lint, types, import contract, dead code, security, known vulnerabilities
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(BIN)/bandit -q -c pyproject.toml -r src
	$(BIN)/python scripts/audit.py $(AUDIT)

audit: $(VENV)/.dev ## Look for known vulnerabilities in the locked dependencies; STRICT=1 fails if that is impossible
	$(BIN)/python scripts/audit.py $(AUDIT)

$(VENV)/.bench: $(VENV)/.dev requirements/bench.txt
	@echo "Installing what the benchmark compares with into $(VENV) …"
	@$(call FETCH,-r requirements/bench.txt)
	@touch $@

bench: $(VENV)/.bench ## Measure what DESIGN promises; JSON goes to bench/results/
	$(BIN)/python -m bench $(ARGS)

schema: $(VENV)/.dev ## Write src/rota/db/schema.sql from the migrations
	$(BIN)/python scripts/schema.py

surface: $(VENV)/.dev ## Write src/rota/surface.json, the public surface, from the code
	$(BIN)/python scripts/surface.py

screenshots: $(VENV)/.dev ## Take pictures of every page into screenshots/, and again those that the docs show
	@sh scripts/system_packages.sh
	$(BIN)/python scripts/screenshots.py

coverage: export PYTHONDONTWRITEBYTECODE :=
coverage: $(VENV)/.dev ## Measure which lines and branches the tests run, in all processes; ARGS chooses tests
	@sh scripts/system_packages.sh
	$(BIN)/python scripts/measure_coverage.py $(ARGS)

matrix: export PYTHONDONTWRITEBYTECODE :=
matrix: $(VENV)/.dev ## Run the tests on every Python and PostgreSQL found here; ARGS=--quick runs a part, ARGS=--list none
	@sh scripts/system_packages.sh
	$(BIN)/python scripts/matrix.py $(ARGS)

format: $(VENV)/.dev ## Format the code and mend what can be mended
	$(BIN)/ruff check --fix -q .
	$(BIN)/ruff format .

lock: $(VENV)/.run ## Resolve the dependencies anew
	$(PIP) uv
	$(LOCK) requirements/build.in -o requirements/build.txt
	$(LOCK) pyproject.toml --extra sandbox -o requirements/run.txt
	$(LOCK) -c requirements/run.txt pyproject.toml --group test --group check -o requirements/dev.txt
	$(LOCK) -c requirements/dev.txt pyproject.toml --group test --group bench -o requirements/bench.txt
	$(LOCK) -c requirements/dev.txt pyproject.toml --all-extras -o requirements/all.txt

.PHONY: help setup up test quick soak check audit bench schema surface screenshots coverage matrix format lock
