# Everything a contributor runs. Needs python3 >= 3.11 with venv or pip, and make; the rest goes into .venv.
# With npm there, Codex, Claude Code and Anthropic's TypeScript SDK are tested too.
# `make run` starts Dragoman, `make test` checks everything.

VENV   ?= .venv
PYTHON ?= python3
ARGS   ?=
JUDGES := openai-harmony==0.0.8 schemathesis==4.32.5 msgspec
AGENTS := @openai/codex@0.169.0 @anthropic-ai/claude-code@2.1.330 @anthropic-ai/sdk@1.12.0
BIN    := $(VENV)/bin
PY     := $(BIN)/python
PIP    := $(PY) -m pip --quiet --disable-pip-version-check
PYTEST := $(PY) -m pytest -n auto --dist worksteal --durations=20
DEV    := --editable '.[local]' --group dev
ROOMS  := src/dragoman/core/*,src/dragoman/wire/*,src/dragoman/formats/*
LOCK    = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
          --no-header --no-annotate
PURE    = $(PY) -m coverage report --include='$(ROOMS)' --precision=2 --fail-under=$(GATE)
# CPython before 3.11.4 gives the end of a `case` to its last line (python/cpython#103971): a branch
# that is taken there is then counted as another.
GATE    = $(shell $(PY) -c 'import sys; print(100 if sys.version_info >= (3, 11, 4) else 99.9)')

# What is fetched from npm comes while Python's packages do, and types are checked while tests run.
MAKEFLAGS += --jobs=2
# Tests start hundreds of processes, each of which would compile all of our modules again where a
# machine is set not to write what was compiled.
export PYTHONDONTWRITEBYTECODE =
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test test-full suite lint style types fmt bench floors release lock docs clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

run: $(VENV)/run.stamp ## start Dragoman (options: make run ARGS="serve --port 9000")
	$(BIN)/dragoman $(ARGS)

test: lint suite ## all checks, under ten minutes on two cores

test-full: $(VENV)/oracles.stamp floors ## the same at full sample sizes
	DRAGOMAN_FULL=1 ORACLES=$(abspath $(VENV))/oracles PYTEST_TIMEOUT=1800 $(MAKE) test

# Coverage is reported here, as pytest-cov works it out twice, and on one processor.
suite: style $(VENV)/agents.stamp
	$(PYTEST) --cov --cov-report= --cov-fail-under=0
	@{ $(PURE) >/dev/null || $(PURE); } & $(PY) -m coverage report && wait $$!

lint: style types ## style, types and import contracts

style: $(VENV)/dev.stamp
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo

types: $(VENV)/dev.stamp
	$(PY) -m mypy

fmt: $(VENV)/dev.stamp ## put the style right
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(VENV)/dev.stamp ## measure against the gates (ARGS=--install fetches the other gateways)
	$(PY) -m bench $(ARGS)

floors: $(VENV)/floors.stamp ## run on the oldest dependencies that are declared

release: $(VENV)/dev.stamp ## build the wheel and its bill of materials into dist/
	$(BIN)/hatchling build -d dist
	$(PY) -m docs.sbom encryption local postgres > dist/dragoman.cdx.json

lock: $(VENV)/dev.stamp ## pin what the image installs, by hash
	$(PIP) install uv
	$(LOCK) --extra encryption --extra local --extra postgres -o docs/deploy/requirements.lock pyproject.toml
	sed -n 's/^requires = \["\(.*\)"\]$$/\1/p' pyproject.toml | $(LOCK) -o docs/deploy/build.lock -

docs: $(VENV)/dev.stamp ## write the generated parts of the documentation again
	$(PY) -m docs.generate

clean: ## remove what was built, the virtual environment too
	rm -rf $(VENV) build dist .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One environment. The package is installed as a link to src/, so only pyproject.toml can make it stale.
# uv installs in a tenth of the time; pip does where only pip is told how to reach an index.
# Debian without python3-venv has no ensurepip: then the system's pip fills the environment.
# Where pip fails, as it does for ever once its own upgrade was interrupted, all is built again.
$(VENV)/pip.stamp:
	@$(PIP) install --upgrade pip 2>/dev/null || { \
	  $(PYTHON) -m venv --clear $(VENV) 2>/dev/null || { \
	    $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(PY) install --quiet pip; } && \
	  $(PIP) install --upgrade pip; }
	@touch $@

$(VENV)/run.stamp: pyproject.toml | $(VENV)/pip.stamp
	$(PIP) install --editable '.[local]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml | $(VENV)/pip.stamp
	@$(PIP) install uv && $(BIN)/uv pip install --quiet --python $(PY) $(DEV) || $(PIP) install $(DEV)
	@touch $@ $(VENV)/run.stamp

# What judges us in `make test-full`, apart, as it is none of our dependencies: the libraries, the test
# suite that the source of jsonschema ships, and the vocabulary that openai-harmony would download.
$(VENV)/oracles.stamp: Makefile | $(VENV)/pip.stamp
	rm -rf $(VENV)/oracles && mkdir -p $(VENV)/oracles/suite
	$(PYTHON) -m venv $(VENV)/oracles/venv 2>/dev/null || { \
	  $(PYTHON) -m venv --clear --without-pip $(VENV)/oracles/venv && \
	  $(PY) -m pip --python $(VENV)/oracles/venv/bin/python install --quiet pip; }
	$(PY) -m pip --python $(VENV)/oracles/venv/bin/python install --quiet $(JUDGES)
	$(PIP) download --no-deps --no-binary jsonschema --dest $(VENV)/oracles jsonschema==4.26.0
	tar xzf $(VENV)/oracles/jsonschema-4.26.0.tar.gz -C $(VENV)/oracles/suite --strip-components 2 \
	  jsonschema-4.26.0/json/tests
	@if command -v npm >/dev/null; then \
	  npm pack --silent --pack-destination $(VENV)/oracles gpt-tokenizer@4.0.0 >/dev/null && \
	  tar xzf $(VENV)/oracles/gpt-tokenizer-4.0.0.tgz -C $(VENV)/oracles package/data; \
	else echo "There is no npm, so openai-harmony is not asked."; fi
	@touch $@

# The lowest versions that pyproject.toml allows, in an environment of their own.
$(VENV)/floors.stamp: pyproject.toml tests/floors.py | $(VENV)/dev.stamp
	$(PY) -m venv --clear --without-pip $(VENV)/floors
	$(PY) -m tests.floors versions > $(VENV)/floors.txt
	$(PIP) --python $(VENV)/floors/bin/python install -r $(VENV)/floors.txt
	$(VENV)/floors/bin/python -m tests.floors
	@touch $@

# The clients that the tests of compliance run as they are, where npm can install them.
$(VENV)/agents.stamp: Makefile | $(VENV)/pip.stamp
	@if command -v npm >/dev/null; then \
	  npm install --prefix $(VENV)/agents --no-audit --no-fund --loglevel=error $(AGENTS) && touch $@; \
	else echo "There is no npm, so Codex, Claude Code and the TypeScript SDK are not tested."; fi
