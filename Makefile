# Everything a developer or CI calls. "make help" lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
DEMO ?= demo
WORKERS ?= 2
export PYSPARK_PYTHON := $(abspath $(BIN)/python)

.PHONY: help setup run test check format bench clean lock prerequisites

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */\1|/' | awk -F'|' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: prerequisites $(VENV)/.packages $(VENV)/.horovod $(VENV)/.jars  ## virtual environment, locked packages, Horovod, Delta's jar

run: setup  ## release one night of a synthetic city, end to end
	@$(BIN)/heathaze demo --tables $(DEMO)

test: setup  ## all tests, in two processes (WORKERS=1: in one)
	@$(BIN)/python -m pytest tests -n $(WORKERS) --dist loadfile --no-loadscope-reorder

check: setup  ## ruff and mypy
	@$(BIN)/ruff check lib jobs tests setup.py
	@$(BIN)/ruff format --check lib jobs tests setup.py
	@$(BIN)/mypy lib jobs

format: setup  ## rewrite the code in the house format
	@$(BIN)/ruff check --fix lib jobs tests setup.py
	@$(BIN)/ruff format lib jobs tests setup.py

bench: setup  ## benchmarks, each beside its reference (BENCH="sampler" picks one)
	@$(BIN)/python -m tests.bench $(BENCH)

lock: $(VENV)/bin/uv  ## pin requirements.in anew into requirements.lock
	@$(BIN)/uv pip compile -q --upgrade requirements.in -o requirements.lock --no-header --no-annotate
	@sed -i '1i # Pinned set for Python 3.11 on Linux x86_64, made by "make lock" from requirements.in.' requirements.lock

clean:  ## remove the virtual environment, the demo and all caches
	@rm -rf $(VENV) $(DEMO) build dist lib/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

prerequisites:
	@command -v $(PYTHON) >/dev/null || { echo "heathaze needs Python 3.11: install it, or name it with make PYTHON=/path/to/python3.11."; exit 1; }
	@java -version 2>&1 | grep -qE '"(17|21)[."]' || { echo "heathaze needs Java 17 or 21 for Spark: install one (Debian: apt-get install openjdk-17-jre-headless) or put it first on PATH."; exit 1; }

$(VENV)/bin/uv:
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

$(VENV)/.packages: requirements.lock setup.py | $(VENV)/bin/uv
	@echo "installing and compiling the locked packages (about 2 minutes, 5 GB)"
	@VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/uv pip install --quiet --compile-bytecode pip -r requirements.lock
	@VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.horovod: conf/bundle/install_horovod.sh $(VENV)/.packages
	@if command -v $${CXX:-g++} >/dev/null; then \
	  echo "building Horovod against torch (about 4 minutes, once)"; \
	  conf/bundle/install_horovod.sh $(abspath $(BIN)/python); \
	else \
	  echo "no C++ compiler found: training will use torch.distributed; for Horovod install g++ (Debian: apt-get install g++), then: rm $@ && make setup"; \
	fi
	@touch $@

$(VENV)/.jars: lib/heathaze/session.py $(VENV)/.packages
	@echo "fetching Delta's jar, and keeping the classes that Spark loads"
	@$(BIN)/python -m heathaze.session
	@touch $@
