PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# uv installs faster, and takes PyTorch's CPU build where there is no GPU. It reads neither pip's settings nor the packages
# below a virtual environment, so pip installs where one of these is used, and where uv is missing.
UV := $(if $(TORCH)$(PIP_INDEX_URL)$(PIP_EXTRA_INDEX_URL)$(PIP_FIND_LINKS),,$(shell command -v uv))
KEEPS_TORCH = grep -qs 'include-system-site-packages = true' $(VENV)/pyvenv.cfg
INSTALL = $(if $(UV),$(shell $(KEEPS_TORCH) || echo $(UV) pip install --python $(BIN)/python))
ifeq ($(UV_INDEX)$(UV_DEFAULT_INDEX)$(UV_FIND_LINKS),)  # else PyTorch comes from there
export UV_TORCH_BACKEND ?= auto
endif
LAB_SETTINGS := $(VENV)/share/jupyter/lab/settings/overrides.json
# Threads sleep while they wait, so that a busy machine stays usable (see cs336_lib/__init__.py).
export OMP_WAIT_POLICY ?= PASSIVE
export PYTHONUNBUFFERED := 1
# Two files run at a time, which saves up to a third of the time on two cores.
TWO_AT_A_TIME := -n 2 --dist loadfile
# Without a network it says what to do, and the notebook that needs the model is left out.
FETCH = $(BIN)/python -m cs336_course fetch smollm2 || true

.DEFAULT_GOAL := help
.PHONY: help lab reset test test-slow e2e jupyterhub notebooks slides handout site owner links lint lock clean

help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

lab: $(VENV)/.lab $(LAB_SETTINGS) ## open your own copy of the notebooks in JupyterLab (ARGS="--no-browser --port 8899" for a server)
	@$(BIN)/python -m cs336_course.learner.study
	$(BIN)/python -m cs336_course.learner.lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/my_notebooks/00_start_here.ipynb $(ARGS)

reset: $(VENV)/.lab ## restore a notebook in my_notebooks and keep yours: make reset NOTEBOOK=03_einops
	@$(BIN)/python -m cs336_course.learner.study --reset '$(NOTEBOOK)'

test: $(VENV)/.test ## run the fast tests, then every cell of every notebook
	$(BIN)/python -m pytest tests --ignore=tests/slow --ignore=tests/e2e $(TWO_AT_A_TIME)
	$(FETCH)
	$(BIN)/python -m pytest --nbval notebooks/ $(TWO_AT_A_TIME)

test-slow: $(VENV)/.test ## run the tests that take minutes (training, torchrun, fresh installs)
	$(BIN)/python -m pytest tests/slow $(TWO_AT_A_TIME)

e2e: $(VENV)/.e2e ## test JupyterLab, every slide and the site in a browser (needs Chromium)
	$(BIN)/python -m pytest tests/e2e --ignore=tests/e2e/test_jupyterhub.py $(TWO_AT_A_TIME)

jupyterhub: $(VENV)/.jupyterhub ## test two students on a JupyterHub in a browser (needs Chromium and npm)
	$(BIN)/python -m pytest tests/e2e/test_jupyterhub.py

notebooks: $(VENV)/.test ## run every notebook and store its normalized outputs
	$(FETCH)
	$(BIN)/python -m tools.notebooks

slides: $(VENV)/.site ## make a deck per notebook in build/slides, which needs no network
	$(BIN)/python -m tools.publish slides

handout: $(VENV)/.site ## make the notebooks without solutions in build/handout
	$(BIN)/python -m tools.publish handout

site: $(VENV)/.site ## make the web site in build/site
	@$(BIN)/python -m tools.owner --check
	$(BIN)/python -m tools.publish site

owner: ## write the owner of your repository into every link: make owner NAME=ada
	@$(PYTHON) -m tools.owner '$(NAME)'

links: ## look at every address that a file names, and list those that don't answer (needs a network)
	@git grep -hoIE "https://[^][ )(>\"'\`\\\\,;|{}]+" -- . ':!uv.lock' | sed 's/[.:*]*$$//' | grep -v YOUR_NAME | sort -u \
	| xargs -P 8 -I ADDRESS sh -c 'curl -fsSL --retry 2 --max-time 30 -o /dev/null ADDRESS 2> /dev/null || echo ADDRESS' \
	| (! grep .)

lint: $(VENV)/.test ## check format, style, spelling, types and the budget of lines, as CI does first
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/python -m tools.budget

lock: ## choose the versions again with uv, and export them to constraints.txt (UPGRADE=--upgrade takes the newest)
	uv lock $(UPGRADE)
	@echo "# The versions in uv.lock, exported by \`make lock\`. CUDA packages are left out, because each PyTorch pins its own." > constraints.txt
	@uv export --quiet --frozen --all-extras --no-emit-project --no-hashes --no-annotate --no-header \
	| sed 's/ ;.*//' | grep -Ev '^(cuda|nvidia|triton)' >> constraints.txt

clean: ## remove the environment and everything built (runs/ stays)
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# One environment holds several extras. Each has a stamp, and it is installed again when its sources are newer.
$(VENV)/.lab: pyproject.toml constraints.txt | $(VENV)/constraints.txt
	$(or $(INSTALL),$(PIP) install) --quiet --constraint $(VENV)/constraints.txt --editable '.[lab]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/constraints.txt
	$(or $(INSTALL),$(PIP) install) --quiet --constraint $(VENV)/constraints.txt --editable '.[lab,test]'
	@touch $@ $(VENV)/.lab

$(VENV)/.site: pyproject.toml constraints.txt | $(VENV)/constraints.txt
	$(or $(INSTALL),$(PIP) install) --quiet --constraint $(VENV)/constraints.txt --editable '.[lab,site]'
	@touch $@ $(VENV)/.lab

$(VENV)/.e2e: pyproject.toml constraints.txt | $(VENV)/constraints.txt
	$(or $(INSTALL),$(PIP) install) --quiet --constraint $(VENV)/constraints.txt --editable '.[lab,test,site,e2e]'
	@touch $@ $(VENV)/.lab $(VENV)/.test $(VENV)/.site

$(VENV)/.jupyterhub: pyproject.toml constraints.txt | $(VENV)/.e2e
	$(or $(INSTALL),$(PIP) install) --quiet --constraint $(VENV)/constraints.txt --editable '.[e2e,jupyterhub,lab]'
	npm install --silent --global --prefix $(VENV) configurable-http-proxy@5.3.0
	@touch $@

# uv finds or downloads a Python in the range of pyproject.toml, unless PYTHON names one.
$(VENV)/bin/python:
ifeq ($(if $(UV),$(origin PYTHON)),file)
	@echo "Installing the course into $(VENV) with uv (once; PyTorch is the large part) ..."
	@$(UV) venv --quiet --seed $(VENV)
else
	@$(PYTHON) -c 'import sys; v = sys.version_info; ok = (3, 11) <= v[:2] <= (3, 14); \
	ok or sys.exit(f"This course needs Python 3.11 to 3.14, and $(PYTHON) is {v[0]}.{v[1]}. Name another: make lab PYTHON=python3.12")'
	@echo "Installing the course into $(VENV) (once; PyTorch is the large part) ..."
	@$(PYTHON) -m venv $(if $(filter keep,$(TORCH)),--system-site-packages) $(VENV)
	@test '$(TORCH)' != keep || $(BIN)/python -c 'import importlib.util, sys; importlib.util.find_spec("torch") \
	or sys.exit("TORCH=keep, but $(PYTHON) has no PyTorch: install it there, or leave TORCH out")' || { rm -rf $(VENV); exit 1; }
endif
	@mkdir -p $(VENV)/etc/jupyter/labconfig  # switch off JupyterLab's question about news
	@echo '{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}' \
	> $(VENV)/etc/jupyter/labconfig/page_config.json

# TORCH=keep uses the PyTorch of PYTHON, because a GPU machine may need its own build. It is pinned to what is there, so that pip
# can't replace it. Everything else is pinned as usual, except setuptools: each PyTorch has its own limit for it.
TORCH_VERSION = import importlib.metadata as installed; print("torch==" + installed.version("torch"))
$(VENV)/constraints.txt: constraints.txt | $(VENV)/bin/python
	@if $(KEEPS_TORCH); then grep -Ev '^(torch|setuptools)==' $< && $(BIN)/python -c '$(TORCH_VERSION)'; else cat $<; fi > $@

# The page renders every cell, so that the browser's search and links to cells find those that are out of view.
$(LAB_SETTINGS): $(firstword $(MAKEFILE_LIST)) | $(VENV)/bin/python
	@mkdir -p $(@D)
	@echo '{"@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}}' > $@
