# Every target does its own set-up: a .venv by uv where it is installed, else by python -m venv and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export UV_COMPILE_BYTECODE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
ROOMS := schemas infra producers streams consumers trainer

.DEFAULT_GOAL := help
.PHONY: help demo test faults chaos check bench lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/ready ## train an agent through the whole loop, here, in minutes (ARGS="--seed 7 --report r.json")
	@$(BIN)/spanloop demo $(ARGS)

test: $(VENV)/ready ## run the tests (ARGS="-k name")
	@$(BIN)/python -m pytest $(ARGS)

# Of test_faults.py every_fault.py has all, for longer.
faults: $(VENV)/ready ## every fault there is, an audit after each; half an hour (ARGS="-k broker")
	@$(BIN)/python -m pytest tests/faults -o python_files="test_*.py every_fault.py" --ignore tests/faults/test_faults.py $(ARGS)

chaos: $(VENV)/ready ## random faults while 5,000 rollouts flow, then the audit (MINUTES=10 SEED=7)
	@PYTHONPATH=tests $(BIN)/python -m faults --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(ARGS)

check: $(VENV)/ready .typing ## ruff, ruff format and pyright strict over code and tests
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright

bench: $(VENV)/ready ## measure the hot paths (ONLY=serde JSON=figures.json)
	@$(BIN)/python tests/bench $(if $(ONLY),--only $(ONLY)) $(if $(JSON),--json $(JSON))

lock: ## resolve requirements.lock anew
	uv pip compile pyproject.toml --all-extras --universal --python-version 3.10 --no-emit-index-url --no-annotate --no-header -o requirements.lock

clean: ## remove everything that was made here
	rm -rf $(VENV) .typing build dist *.egg-info runs .kafka .peer .pytest_cache .ruff_cache .hypothesis

$(VENV)/ready: requirements.lock pyproject.toml
	@PYTHON=$(PYTHON) infra/make_venv.sh $(VENV)

# Symlinks that show the folders as one package to type checkers, which do not read setuptools' mapping.
.typing: $(wildcard spanloop/*.py)
	@rm -rf .typing && mkdir -p .typing/spanloop
	@for room in $(ROOMS); do ln -s ../../$$room .typing/spanloop/$$room; done
	@for file in spanloop/*; do ln -s ../../$$file .typing/spanloop/; done
