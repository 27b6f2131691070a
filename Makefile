# make demo   install into .venv and watch an agent learn to use a calculator (two cores, no GPU)
# make test   install into .venv with the tools for development and run every check
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install -c constraints.txt
DEMO_ARGS ?=

.PHONY: demo test slow check docs clean

demo: $(VENV)/.run
	$(BIN)/areal-agent train examples/calculator/config.yaml $(DEMO_ARGS)

test: $(VENV)/.dev check
	$(BIN)/pytest -n 2 --dist loadfile

slow: $(VENV)/.dev
	$(BIN)/pytest -m slow -s

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

docs: $(VENV)/.dev
	$(BIN)/sphinx-build -W -q -b html docs docs/_build/html

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch goes first and alone: the constraint decides which build it is before anything else asks.
$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) torch
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) torch
	$(PIP) -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) runs docs/_build
