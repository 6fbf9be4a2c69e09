# Two commands from a bare Python: `make demo` serves the page, `make test` runs every test.
# The environment lives in .venv and is rebuilt only when a requirements file changes.

PYTHON ?= $(shell command -v python3.11 || command -v python3 || command -v python)
HOST ?= 127.0.0.1
PORT ?= 7860
# The torch everything is tested with. TORCH_INDEX names an index to take it from, e.g. one of CPU builds.
TORCH ?= 2.13.0
TORCH_INDEX ?=

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --progress-bar on

.PHONY: demo test check lint browser clean help

help:
	@echo "make demo    set up .venv and serve the page on http://$(HOST):$(PORT)"
	@echo "make test    set up what the tests need and run them all"
	@echo "make check   lint, then test"
	@echo "make clean   remove .venv and caches"

demo: $(VENV)/.ready
	$(PY) app.py --host $(HOST) --port $(PORT)

test: $(VENV)/.ready-dev browser
	$(PY) -m pytest $(PYTEST_ARGS)

check: lint test

lint: $(VENV)/.ready-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "No Python found. Install Python 3.11, or name one: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "$(PYTHON) is too old: Python 3.10 or newer is needed, 3.11 is tested."; exit 1; }
	@echo "[1/3] Making the environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$(PYTHON) makes no environments: install its venv package (on Debian python3-venv), or name another: make PYTHON=/path/to/python"; exit 1; }

# Without a GPU the CPU build is wanted: a tenth of the size. It is taken where an index offers it; pip's plain
# answer is the fallback, which on Linux may be a CUDA build of several gigabytes (see TORCH_INDEX in the README).
$(VENV)/.torch-$(TORCH): $(VENV)/bin/python
	@echo "[2/3] Installing torch $(TORCH)"
	@if [ -n "$(TORCH_INDEX)" ]; then \
	   $(PIP) "torch==$(TORCH)" --index-url "$(TORCH_INDEX)"; \
	 elif command -v nvidia-smi >/dev/null 2>&1; then \
	   $(PIP) "torch==$(TORCH)"; \
	 else \
	   $(PIP) "torch==$(TORCH)+cpu" 2>$(VENV)/torch.log || { \
	     grep -q "No matching distribution" $(VENV)/torch.log || { cat $(VENV)/torch.log >&2; exit 1; }; \
	     echo "No CPU build on the configured indexes: taking the plain build."; $(PIP) "torch==$(TORCH)"; }; \
	 fi
	@touch $@

$(VENV)/.ready: requirements.txt $(VENV)/.torch-$(TORCH)
	@echo "[3/3] Installing what the demo needs"
	$(PIP) "torch==$(TORCH)" -r requirements.txt
	@touch $@

$(VENV)/.ready-dev: requirements-dev.txt $(VENV)/.ready
	@echo "Installing what the tests need"
	$(PIP) -r requirements-dev.txt
	@touch $@

# The page's tests need a browser: the system's Chromium, or the one Playwright can fetch. Without either those
# tests skip and say so.
browser: $(VENV)/.ready-dev
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do command -v $$name >/dev/null && exit 0; done; \
	 $(PY) -m playwright install chromium || echo "No browser could be installed: the page's tests will be skipped."

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
