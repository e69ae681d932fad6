# Every target does all of its own set-up in an empty clone: Python 3.11 or newer, make and git are enough.
#
#   make run      install once, then run a node with default settings (listens on loopback only)
#   make test     lint, types and the whole suite
#   make check    lint and types only, a few seconds
#   make docs     build the documentation into build/docs
#   make bench    throughput and latency on this machine
#   make soak     simulated disasters, then kill -9 under load, then a cluster that loses its leaders
#   make mutants  break the code one rule at a time and show which test notices
#   make spec     the model checker over every module, full set and mutants; writes the tables in docs
#   make clean    remove what the targets above made (never the data directory)
#
# ARGS is passed on:  make run ARGS="--listen 127.0.0.1:50052",  make test ARGS="-k lease"

.DEFAULT_GOAL := help
.PHONY: help run test check docs bench soak mutants spec clean
SHELL := /bin/sh
ARGS ?=

# Hundreds of short processes would each compile the same modules: twice the work of every start of a node.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
PY := $(VENV)/bin/python
# What is imported gets compiled then: no need to compile all of it now.
# Errors only: what the build tools warn of is nothing that a newcomer could change.
PIP_INSTALL := $(PY) -m pip install --quiet --quiet --no-compile --disable-pip-version-check
# pip's editable install is an import hook that is asked last. A script beside a clone called walrq would find that
# folder first, as an empty namespace; a real entry of sys.path wins over it.
ON_PATH := $(PY) -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("purelib"), "walrq_checkout.pth").write_text(str(pathlib.Path.cwd()) + "\n")'

help:
	@sed -n -e 's/^#   \(make .*\)/\1/p' -e 's/^# \(ARGS is .*\)/\1/p' Makefile

# A candidate must run (a version manager's shim may not) and be able to make a virtual environment. The pip that old
# Pythons bring takes twice as long to read an index.
$(PY):
	@for p in python3.13 python3.12 python3.11 python3; do \
	  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	  "$$p" -c 'import ensurepip, venv' >/dev/null 2>&1 || { no_venv=$$p; continue; }; \
	  echo "making $(VENV) with $$p"; rm -rf $(VENV); "$$p" -m venv $(VENV) || exit; \
	  $(PIP_INSTALL) --upgrade 'pip>=25' || echo "walrq: going on with the pip of $$p" >&2; exit 0; \
	done; \
	if [ -n "$$no_venv" ]; then echo "walrq: $$no_venv has no venv module: install it (Debian: apt-get install python3-venv)" >&2; \
	else echo "walrq: Python 3.11 or newer is needed and none was found on PATH" >&2; fi; exit 1

# The stamps are keyed on pyproject.toml: nothing is installed again until it changes. The install is editable, so
# that changed code needs no installation either.
$(VENV)/.installed-run: pyproject.toml $(PY)
	@echo "installing walrq into $(VENV)"
	@$(PIP_INSTALL) --editable .
	@$(ON_PATH)
	@touch $@

$(VENV)/.installed-test: pyproject.toml $(PY)
	@echo "installing walrq and its test tools into $(VENV)"
	@$(PIP_INSTALL) --editable '.[test]'
	@$(ON_PATH)
	@touch $@ $(VENV)/.installed-run $(VENV)/.installed-docs

$(VENV)/.installed-docs: pyproject.toml $(PY)
	@echo "installing walrq and what builds its documentation into $(VENV)"
	@$(PIP_INSTALL) --editable '.[docs]'
	@$(ON_PATH)
	@touch $@ $(VENV)/.installed-run

run: $(VENV)/.installed-run
	@exec $(VENV)/bin/walrq serve --all-doors $(ARGS)

check: $(VENV)/.installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# One process for each processor, which most tests leave idle now and then. ARGS="-n0" runs all in one.
test: check
	$(PY) -m pytest -n auto --maxprocesses 4 $(ARGS)

# The site, strictly: a link that leads nowhere is an error.
docs: $(VENV)/.installed-docs
	@$(PY) -m sphinx -W --keep-going -n -q -b html -d build/docs-trees $(ARGS) docs build/docs
	@echo "open build/docs/index.html"

bench: $(VENV)/.installed-test
	$(PY) -m bench throughput $(ARGS)
	$(PY) -m bench latency $(ARGS)

soak: $(VENV)/.installed-test
	@mkdir -p build
	$(PY) -m walrq.testing.cluster --seeds 0:20000 --jobs 2 --resume build/simulator.json
	$(PY) -m chaos soak $(ARGS)
	$(PY) -m chaos cluster

mutants: $(VENV)/.installed-test
	$(PY) -m tests.mutants.run $(ARGS)

spec: $(VENV)/.installed-test
	@mkdir -p build
	$(VENV)/bin/walrq spec check --set all --mutants --jobs 2 --json $(ARGS) > build/spec.jsonl; status=$$?; \
	$(PY) -m tests.spec.tables build/spec.jsonl; exit $$status

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find walrq chaos bench spec tests -name __pycache__ -type d -prune -exec rm -rf {} +
