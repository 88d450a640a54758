# make demo   install into .venv and run notebooks/quickstart.ipynb on what this machine has
# make lab    open the notebooks in JupyterLab
# make test   install what the tests need into .venv-test and run all of them, two at a time
#             (PYTEST_ARGS="-n 0 ..." for one at a time)
# make lint   ruff and mypy

PYTHON ?= python3
VENV ?= .venv
TEST_VENV ?= .venv-test
PYTEST_ARGS ?=
# Most tests wait for a kernel or a page, so that two at a time take half as long on two cores.
TEST_JOBS ?= 2

# A torch that this Python has is used; none is installed, since it takes gigabytes.
SITE := $(shell $(PYTHON) -c "import torch" 2>/dev/null && echo --system-site-packages)

# In a container one is often root, which Jupyter wants to be told.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: demo lab test lint clean

demo: $(VENV)/.demo
	$(VENV)/bin/python notebooks/run.py notebooks/quickstart.ipynb --html build/quickstart.html

lab: $(VENV)/.lab
	$(VENV)/bin/jupyter lab --ip 127.0.0.1 $(AS_ROOT) notebooks/quickstart.ipynb

test: $(TEST_VENV)/.test
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
	  || command -v google-chrome >/dev/null || test -n "$$GPUMAGIC_CHROMIUM" \
	  || echo "No Chromium: browser tests are skipped; apt-get install chromium brings it."
	$(TEST_VENV)/bin/python -m pytest -n $(TEST_JOBS) --dist loadscope --no-loadscope-reorder \
	  $(PYTEST_ARGS)

lint: $(TEST_VENV)/.test
	$(TEST_VENV)/bin/ruff check .
	$(TEST_VENV)/bin/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(SITE) $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade "pip>=25.1"

$(TEST_VENV)/bin/python:
	$(PYTHON) -m venv $(TEST_VENV)
	$(TEST_VENV)/bin/python -m pip install --quiet --upgrade "pip>=25.1"

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --editable . --group demo
	@touch $@

$(VENV)/.lab: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --editable ".[lab]"
	@touch $@

$(TEST_VENV)/.test: pyproject.toml | $(TEST_VENV)/bin/python
	$(TEST_VENV)/bin/python -m pip install --quiet --editable . --group test --group lint
	@touch $@

clean:
	rm -rf $(VENV) $(TEST_VENV) build dist
