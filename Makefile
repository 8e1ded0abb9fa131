# Two commands do all the set-up: `make demo` shows the product, `make test` checks it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BENCH  := ./fedkad-bench

.PHONY: demo test fast other quick lint docs wheel release clean

demo: $(VENV)/.demo
	$(BIN)/fedkad demo --out demo

test: $(VENV)/.dev lint
	$(BIN)/pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

# What needs no real process, no network and no training of minutes, with fewer examples: for the time between edits.
fast: $(VENV)/.dev lint
	$(BIN)/pytest --numprocesses 2 --dist worksteal -m "not slow" --hypothesis-profile fast

# The fast tests of the product alone, for another Python: make other PYTHON=python3.13 VENV=.venv-3.13 BENCH=
other: $(VENV)/.dev
	$(BIN)/pytest --numprocesses 2 --dist worksteal -m "not slow" --hypothesis-profile fast tests src

# The benchmark's whole way in a minute, on a few clients of one dataset: shows that all works, not how well.
quick: $(VENV)/.dev
	$(BIN)/fedkad bench run paper --quick --datasets MSL --clients 2 --redo --out quick \
	  --studies heterogeneity,exchange,coldstart,ablations

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site, in build/site: a broken link or anchor is an error.
docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

wheel: $(VENV)/.dev
	$(BIN)/python -m build --wheel --no-isolation
	$(BIN)/python -m build --wheel --no-isolation --outdir dist fedkad-bench

# Both distributions as an index takes them, and what the product brings along with all of its extras, in dist/.
release: wheel
	$(BIN)/python -m build --sdist --no-isolation
	$(BIN)/python -m build --sdist --no-isolation --outdir dist fedkad-bench
	$(BIN)/twine check --strict dist/*.whl dist/*.tar.gz
	$(PYTHON) -m venv --clear build/release
	build/release/bin/python -m pip install --quiet --disable-pip-version-check "fedkad[edge,fleet,read] @ file://$$(ls $(CURDIR)/dist/fedkad-*.whl)"
	build/release/bin/python -m pip uninstall --quiet --yes pip setuptools
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o dist/fedkad.cdx.json build/release

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "FedKAD needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[read]'
	@touch $@

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs,read]'
	@touch $@ $(VENV)/.demo

$(VENV)/.dev: pyproject.toml fedkad-bench/pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' $(BENCH:%=--editable %)
	@touch $@ $(VENV)/.demo $(VENV)/.docs

clean:
	rm -rf .venv .venv-* demo quick dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
