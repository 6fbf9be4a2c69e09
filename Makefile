# Two commands from a bare Python: `make demo` serves the page, `make test` runs all tests but the slow ones.
# The environment lives in .venv and is rebuilt only when what it needs changes.

# The first that can make an environment; 3.11 is tested whole.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3.10 python3 python; do \
  $$name -c 'import ensurepip, venv' 2>/dev/null && echo $$name && break; done)
HOST ?= 127.0.0.1
PORT ?= 7860
# The torch everything is tested with. TORCH_INDEX names the one index to take it from.
TORCH := $(shell sed -n 's/^torch==//p' requirements.txt)
TORCH_INDEX ?=

# Processes that run tests: one more than there are processors, for most tests wait on a server or a browser.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(4, 1 + (os.cpu_count() or 1)))' 2>/dev/null || echo 2)

# How tests are spread over them: in the groups and the order of tests/conftest.py.
PYTEST = $(PY) -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --progress-bar on

.PHONY: demo test test-slow test-apart test-gpu test-quick check lint audit weights browser clean help

help:
	@echo "make demo    set up .venv and serve the page on http://$(HOST):$(PORT)"
	@echo "make test    set up what the tests need and run them, but for the slow ones"
	@echo "make test-slow   the slow ones: every family, clusters, training, long visits"
	@echo "make test-apart  those of lab/ and recipes/"
	@echo "make test-gpu    those that need a GPU, which all others are kept away from"
	@echo "make test-quick  units only: no browser, no server"
	@echo "make lint    ruff, mypy, names; where node is installed also types and style of the scripts"
	@echo "make check   lint and types, then both kinds of tests"
	@echo "make audit   look up known vulnerabilities of what .venv holds"
	@echo "make clean   remove .venv and caches"

demo: $(VENV)/.ready
	@$(PY) -m specvl_demo fetch photo > /dev/null || echo "The page serves the drawn-scene pair."
	$(PY) app.py --host $(HOST) --port $(PORT)

test: weights browser
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-slow: weights browser
	$(PYTEST) -m slow $(PYTEST_ARGS)

# Of the laboratory and the recipes, which stand beside the app.
test-apart: weights
	$(PY) -m pytest lab/tests $(PYTEST_ARGS)
	$(PY) -m pytest recipes/tests $(PYTEST_ARGS)

test-gpu: $(VENV)/.ready-dev
	SPECVL_TESTS_GPU=$${CUDA_VISIBLE_DEVICES:-0} $(PY) -m pytest -m gpu -rs tests $(PYTEST_ARGS)

test-quick: $(VENV)/.ready-dev
	$(PYTEST) -m "not slow" tests/unit $(patsubst %,tests/contract/test_%.py,docs imports records) $(PYTEST_ARGS)

check: lint test test-slow

lint: $(VENV)/.ready-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m tools.names
	$(PY) -m lab.size
	$(PY) -m tools.scripts
	@if command -v npx >/dev/null; then npx --yes prettier@3 --check . --log-level warn || exit 1; \
	  else echo "Prettier was left out: there is no node here."; fi

# In an environment of its own: what is looked at stays as it is.
audit: $(VENV)/.ready
	@test -x $(VENV)/audit/bin/pip-audit || { $(PY) -m venv $(VENV)/audit && \
	  $(VENV)/audit/bin/python -m pip --disable-pip-version-check install --quiet pip-audit; } || \
	  { echo "pip-audit could not be installed: nothing was looked up."; exit 1; }
	@$(VENV)/audit/bin/pip-audit --progress-spinner off --path "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || \
	  { echo "See above: known vulnerabilities, or their list could not be reached."; exit 1; }
	@echo "What was skipped above was not looked up."

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "No Python that makes environments was found. Install Python 3.11 with venv (on Debian" \
	  "python3 and python3-venv), or name one: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "$(PYTHON) is too old: Python 3.10 or newer is needed, 3.11 is tested whole."; exit 1; }
	@echo "[1/3] Making the environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$(PYTHON) makes no environments: install its venv package (on Debian python3-venv), or name another: make PYTHON=/path/to/python"; exit 1; }

$(VENV)/.torch-$(TORCH): $(VENV)/bin/python
	@echo "[2/3] PyTorch"
	@$(PY) tools/install_torch.py --index "$(TORCH_INDEX)"
	@touch $@

$(VENV)/.ready: requirements.txt $(VENV)/.torch-$(TORCH)
	@echo "[3/3] Installing what the demo needs"
	$(PIP) -r requirements.txt
	@touch $@

$(VENV)/.ready-dev: pyproject.toml $(VENV)/.ready
	@echo "Installing what the tests need"
	$(PIP) -c requirements.txt -e ".[dev]"
	@touch $@

weights: $(VENV)/.ready-dev
	@$(PY) -m specvl_demo fetch photo || echo "Tests that need these weights are skipped."

# Installs a browser for the page's tests where it can; without one those tests skip and say so.
browser: $(VENV)/.ready-dev
	@$(PY) -m tools.browser

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
