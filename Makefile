# Two commands do everything on a machine with git, make and python3 (with pip and venv):
#   make demo    sets up and runs a real, offline run that is killed and resumed
#   make test    sets up, then lint, strict types and all tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test test-local-model reliability lint format bench lock clean

setup: $(READY)

$(READY): pyproject.toml requirements.lock
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip --quiet --disable-pip-version-check install --require-hashes -r requirements.lock
	$(BIN)/pip --quiet --disable-pip-version-check install --no-deps --editable .
	@touch $@

demo: $(READY)
	$(BIN)/python examples/demo/demo.py

test: lint
	$(BIN)/python -m pytest -n 2

# A real model behind any server that the environment names; tests/local_model says how.
test-local-model: $(READY)
	$(BIN)/python -m pytest -m local_model -s tests/local_model

# The long form of what `make test` tries in short; takes an hour or two and writes docs/reliability.md.
reliability: $(READY)
	$(BIN)/python -m tests.reliability

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/python -m bench

# Names, versions and hashes only: a lock with registry addresses would pin where, not what.
lock: $(READY)
	$(BIN)/pip --quiet install uv
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--group dev pyproject.toml --output-file requirements.lock --upgrade

clean:
	rm -rf $(VENV) .bench .mypy_cache .ruff_cache .hypothesis
