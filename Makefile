# Everything that is done with this project, from a clean clone: `make help` lists it.

VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO_INSTALLED := $(VENV)/.demo-installed
OLDEST_PYTHON := 3.11
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11 python
# How many processes run the tests at once: the programs that they start have two threads and more, and wait for each other.
WORKERS ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores > 3 ? cores * 3 / 4 : 3)))

# Keeps the lines of what runs at once together, where make can do that.
TOGETHER := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

# The tests start a thousand Python processes; without the cache each of them would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install environments lint types layers house recorder wheel tests thorough slow-tests test tests-tensorflow tests-jax tests-integrations tests-legacy frameworks checks fuzz causes planted-bugs golden golden-traces demo facts docs site clean

help:  ## List what can be made.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 26

install: $(INSTALLED)  ## Make .venv and install the package, PyTorch and the tools for testing into it.

$(VENV)/bin/python:
	@set -e; for name in $(if $(PYTHON),$(PYTHON),$(CANDIDATES)); do \
		if "$$name" -c 'import sys, venv; sys.exit(sys.version_info < tuple(map(int, "$(OLDEST_PYTHON)".split("."))))' 2>/dev/null; then \
			echo "Making $(VENV) with $$name ($$("$$name" -V))"; exec "$$name" -m venv $(VENV); fi; done; \
	echo "Python $(OLDEST_PYTHON) or newer is needed, with its venv module; none of these is one: $(if $(PYTHON),$(PYTHON),$(CANDIDATES))." >&2; \
	echo "Install it, or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1

# Python compiles what is imported; that pip compiles all of each package takes longer than to install it.
$(INSTALLED): $(VENV)/bin/python pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable . --group torch --group triton --group demo --group test --group checks --group docs
	@touch $@

lint: $(INSTALLED)  ## Look for mistakes in the code.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)  ## Check the types.
	$(BIN)/mypy

layers: $(INSTALLED)  ## Check who imports whom.
	$(BIN)/lint-imports --no-logo

house: $(INSTALLED)  ## Measure how the package is built: modules, their lengths, chains and cycles of imports.
	$(BIN)/python -m tools.house

# Without it the tests that need it are skipped, and counted; so a compiler that is missing fails nothing.
recorder: $(INSTALLED)  ## Build the native recorder of PyTorch for .venv, unless it is there.
	-$(BIN)/python -m determinism.frameworks.torch.native_library

wheel: $(INSTALLED)  ## Build the package as a wheel, dist/, with the native recorder for the PyTorch and the Python of .venv.
	$(BIN)/python -m determinism.frameworks.torch.native_library src/determinism/frameworks/torch/native/built
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

tests: recorder  ## Run the tests alone.
	DETERMINISM_TEST_FRAMEWORKS=torch $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

thorough: recorder  ## Run the tests that `make test` leaves out, or some: PART=causes. It says what it runs and how long that takes.
	@WORKERS=$(WORKERS) $(BIN)/python -m tests.thorough $(PART)

slow-tests: environments  ## Measure which tests take long, of those that are run at this commit (40 minutes).
	$(BIN)/python -m tests.slow_tests

test:  ## Run every check, every test with each framework, and make the site.
	@$(MAKE) --no-print-directory -j3 $(TOGETHER) environments types
	@$(MAKE) --no-print-directory lint layers tests frameworks
	@$(MAKE) --no-print-directory -j2 $(TOGETHER) tests-legacy site

environments: $(INSTALLED) .venv-tensorflow/.installed .venv-jax/.installed .venv-integrations/.installed  ## Make the environments of all frameworks.

GROUPS_OF_integrations := --group torch
# TensorFlow and JAX have environments of their own: what they need of other packages need not fit together.
.venv-%/bin/python: $(VENV)/bin/python
	$(BIN)/python -m venv .venv-$*

.venv-%/.installed: .venv-%/bin/python pyproject.toml
	@.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --editable . --group $* --group test $(GROUPS_OF_$*)
	@touch $@

tests-tensorflow: .venv-tensorflow/.installed  ## Run the tests that need TensorFlow, in an environment of its own.
	DETERMINISM_TEST_FRAMEWORKS=tensorflow .venv-tensorflow/bin/python -m pytest -n $(WORKERS) --dist worksteal tests/adapters tests/e2e tests/integrations

tests-jax: .venv-jax/.installed  ## Run the tests that need JAX, in an environment of its own.
	DETERMINISM_TEST_FRAMEWORKS=jax .venv-jax/bin/python -m pytest -n $(WORKERS) --dist worksteal tests/adapters tests/e2e tests/integrations

tests-integrations: .venv-integrations/.installed  ## Run the tests that need Lightning, Hugging Face, Ignite or Jupyter, in an environment of its own.
	DETERMINISM_TEST_FRAMEWORKS=integrations .venv-integrations/bin/python -m pytest -n $(WORKERS) --dist worksteal tests/integrations

# Each old version in an environment of its own, under Python 3.7; where there is none, that is said and nothing is run.
tests-legacy: $(INSTALLED)  ## Run the tests of tensorflow-determinism with two old versions of TensorFlow; `make thorough PART=legacy` runs them with all.
	$(BIN)/python legacy/tensorflow-determinism/run_tests.py 1.15.5 2.7.4

frameworks: tests-tensorflow tests-jax tests-integrations  ## Run the tests of all other frameworks than PyTorch, and of what is built on it.

.PRECIOUS: .venv-%/bin/python .venv-%/.installed

checks: $(INSTALLED)  ## Check deterministic programs a hundred times: none may come out as different (about an hour).
	$(BIN)/python -m tests.e2e.many_checks --checks 100 --workers $(WORKERS)

fuzz: $(INSTALLED)  ## Damage traces a hundred thousand times, and read each (about a quarter of an hour).
	$(BIN)/python -m tests.fuzz --mutations 100000

causes: $(INSTALLED)  ## Look for the causes of programs that have known ones, and print a table of what was found.
	$(BIN)/python -m tests.e2e.many_causes

planted-bugs: $(INSTALLED) .venv-tensorflow/.installed .venv-jax/.installed  ## Plant twenty bugs at random places, one at a time, and see which test fails (hours).
	$(BIN)/python -m tools.planted_bugs --count 20

golden: $(INSTALLED)  ## Compare the stored traces anew and write the reports on them; look at the difference with git.
	$(BIN)/python -m tests.golden.make reports

golden-traces: $(INSTALLED) .venv-tensorflow/.installed .venv-jax/.installed  ## Record the stored traces anew, with every framework (about half an hour).
	$(BIN)/python -m tests.golden.make traces --workers $(WORKERS)
	.venv-tensorflow/bin/python -m tests.golden.make traces --workers $(WORKERS) tensorflow explained/tensorflow_missing_seed
	.venv-jax/bin/python -m tests.golden.make traces --workers $(WORKERS) jax explained/jax_key

# Only what the demo needs, and nothing if it is there. Of PyTorch's builds the one for the CPU is taken: it has no libraries for GPUs.
# It is asked for by its exact version, of which pip prefers the build `+cpu` wherever that is found: at PyTorch's index or, where this cannot be
# reached, at a mirror or in a folder of pip's own configuration. A range would take the newest release, of which PyPI has the build for GPUs alone.
# Its dependencies come afterwards, from the usual index: pip would ask PyTorch's for each of them, and wait where it cannot be reached.
$(DEMO_INSTALLED): $(VENV)/bin/python pyproject.toml
	@if [ ! -e $(INSTALLED) ]; then \
		echo "Installing determinism, PyTorch (CPU) and NumPy into $(VENV)"; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1' && \
		group=$$($(BIN)/python -c 'from importlib.util import find_spec; print("demo" if find_spec("torch") else "torch")') && \
		if [ "$$group" = torch ]; then $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps \
			--retries 0 --timeout 20 --extra-index-url https://download.pytorch.org/whl/cpu --group torch; fi && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable . --group $$group; fi
	@touch $@

demo: $(DEMO_INSTALLED)  ## Check a real training program that is nondeterministic; see README.md.
	@rm -f $(VENV)/demo.json
	@PATH="$(BIN):$$PATH" determinism check --json $(VENV)/demo.json -- python examples/digits/train.py || [ $$? = 1 ]
	@$(BIN)/python examples/digits/expected.py $(VENV)/demo.json

facts: $(INSTALLED)  ## Check what is known of ops, and write the index and the pages made from it.
	$(BIN)/python -m tests.architecture.knowledge_checks

docs: $(INSTALLED) facts  ## Write what is made from code and data: the pages under docs/, and the index of what is known of ops.
	$(BIN)/python -m tests.architecture.api_page
	$(BIN)/python tests/architecture/command_line_page.py
	$(BIN)/python -m tests.architecture.lint_rules_page
	$(BIN)/python tests/architecture/formulas_page.py
	$(BIN)/python tests/architecture/settings_page.py
	$(BIN)/python tests/architecture/patches_page.py
	$(BIN)/python -m tests.architecture.report_picture

site: $(INSTALLED)  ## Make the documentation as a site, dist/site; a link or a page that leads nowhere fails.
	$(BIN)/python -m tests.architecture.op_pages
	$(BIN)/python -m sphinx -W --keep-going -q -j auto -b html docs dist/site

clean:  ## Remove what was made.
	rm -rf $(VENV) .venv-tensorflow .venv-jax .venv-integrations .determinism .mypy_cache .ruff_cache .pytest_cache .import_linter_cache dist docs/op legacy/tensorflow-determinism/.venvs
	find src tests examples benchmarks legacy -name __pycache__ -type d -prune -exec rm -rf {} +
