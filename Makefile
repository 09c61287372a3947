PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
LAB_SETTINGS := $(VENV)/share/jupyter/lab/settings/overrides.json
# Threads that sleep while they wait, so that a busy machine stays usable (see cs336_lib/__init__.py).
export OMP_WAIT_POLICY ?= PASSIVE
export PYTHONUNBUFFERED := 1
# Test files two at a time, each in one process: on two cores a third less to wait. Notebooks measure times, and go alone.
TWO_AT_A_TIME := -n 2 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help lab reset test test-slow e2e notebooks slides handout site lint clean

help: ## what there is to make
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

lab: $(VENV)/.lab $(LAB_SETTINGS) ## open your own copy of the notebooks in JupyterLab (ARGS="--no-browser --port 8899" for a server)
	@$(BIN)/python -m cs336_lib.classroom.study
	$(BIN)/jupyter lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/my_notebooks/00_start_here.ipynb $(ARGS)

reset: $(VENV)/.lab ## restore a notebook in my_notebooks and keep yours: make reset NOTEBOOK=03_einops
	@$(BIN)/python -m cs336_lib.classroom.study --reset '$(NOTEBOOK)'

test: $(VENV)/.test ## the fast tests, then every cell of every notebook
	$(BIN)/python -m pytest tests --ignore=tests/slow --ignore=tests/e2e $(TWO_AT_A_TIME)
	$(BIN)/python -m pytest --nbval notebooks/

test-slow: $(VENV)/.test ## the tests that take minutes: training, torchrun, fresh installs
	$(BIN)/python -m pytest tests/slow $(TWO_AT_A_TIME)

e2e: $(VENV)/.e2e ## what only a browser shows: JupyterLab, every slide, the site (needs Chromium)
	$(BIN)/python -m pytest tests/e2e

notebooks: $(VENV)/.test ## run every notebook and store its outputs in normal form
	$(BIN)/python -m cs336_lib.classroom.notebooks

slides: $(VENV)/.site ## a deck per notebook in build/slides, for any browser, without a network
	$(BIN)/python -m cs336_lib.classroom.publish slides

handout: $(VENV)/.site ## the notebooks without solutions, in build/handout
	$(BIN)/python -m cs336_lib.classroom.publish handout

site: $(VENV)/.site ## the course as a web site, in build/site
	$(BIN)/python -m cs336_lib.classroom.publish site

lint: $(VENV)/.test ## check format, style and spelling, as CI does first
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell

clean: ## remove the environment and everything built (runs/ stays)
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# One environment, made in several strengths. A stamp is older than what it was made from: made again.
$(VENV)/.lab: pyproject.toml constraints.txt | $(VENV)/constraints.txt
	$(PIP) install --quiet --constraint $(VENV)/constraints.txt --editable '.[lab]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/constraints.txt
	$(PIP) install --quiet --constraint $(VENV)/constraints.txt --editable '.[lab,test]'
	@touch $@ $(VENV)/.lab

$(VENV)/.site: pyproject.toml constraints.txt | $(VENV)/constraints.txt
	$(PIP) install --quiet --constraint $(VENV)/constraints.txt --editable '.[lab,site]'
	@touch $@ $(VENV)/.lab

$(VENV)/.e2e: pyproject.toml constraints.txt | $(VENV)/constraints.txt
	$(PIP) install --quiet --constraint $(VENV)/constraints.txt --editable '.[lab,test,site,e2e]'
	@touch $@ $(VENV)/.lab $(VENV)/.test $(VENV)/.site

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; ok = (3, 11) <= v[:2] <= (3, 14); \
	ok or sys.exit(f"This course needs Python 3.11 to 3.14, and $(PYTHON) is {v[0]}.{v[1]}. Name another: make lab PYTHON=python3.12")'
	@echo "Installing the course into $(VENV) (once; PyTorch is the large part) ..."
	@$(PYTHON) -m venv $(if $(filter keep,$(TORCH)),--system-site-packages) $(VENV)
	@test '$(TORCH)' != keep || $(BIN)/python -c 'import importlib.util, sys; importlib.util.find_spec("torch") \
	or sys.exit("TORCH=keep, but $(PYTHON) has no PyTorch: install it there, or leave TORCH out")' || { rm -rf $(VENV); exit 1; }
	@mkdir -p $(VENV)/etc/jupyter/labconfig  # JupyterLab asks about its news before all else: not here
	@echo '{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}' \
	> $(VENV)/etc/jupyter/labconfig/page_config.json

# With TORCH=keep, PyTorch is the one that PYTHON has: a GPU machine may need its own build. All else is pinned.
$(VENV)/constraints.txt: constraints.txt | $(VENV)/bin/python
	@if grep -q 'include-system-site-packages = true' $(VENV)/pyvenv.cfg; then grep -v '^torch==' $<; else cat $<; fi > $@

# The page holds every cell, also those out of sight: the browser's search and links to cells find them.
$(LAB_SETTINGS): $(firstword $(MAKEFILE_LIST)) | $(VENV)/bin/python
	@mkdir -p $(@D)
	@echo '{"@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}}' > $@
