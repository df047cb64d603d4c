# make demo: pictures of what a network saw, and a report on which method to believe.  make app: a page to look for yourself.  make test: the tests.  make check: lint, types, doctests.
# make docs: the site of the documentation.  make bench: what every method costs.  make bench-gae: what an evaluation costs.  make clean: remove the environment and what was written.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
TORCH := $(shell grep '^torch==' constraints.txt)

.PHONY: demo app test check docs bench bench-gae clean

demo: $(VENV)/.demo
	@$(BIN)/abslrp demo --out out

app: $(VENV)/.app
	@$(BIN)/abslrp app

test: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

check: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest --doctest-modules src --ignore=src/abslrp/propagation/triton_kernels.py

docs: $(VENV)/.dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "$(CURDIR)/site/index.html"

bench: $(VENV)/.dev
	@$(BIN)/python -m benchmarks --batch 1 8 --methods all

bench-gae: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.gae --networks VGG16 ResNet50 ViT-Base/16

clean:
	@rm -rf $(VENV) build dist site out abslrp-out .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "error: $(PYTHON) is older than 3.10 or missing: run make PYTHON=python3.11, or any newer one."; exit 2; }
	@echo "Making $(VENV) (once) ..."
	@rm -rf $(VENV) && $(PYTHON) -m venv $(VENV)
	@touch $@

# Torch goes first and pinned, so that pip takes the build that is at hand instead of the newest one.
$(VENV)/.torch: constraints.txt | $(VENV)/.made
	@echo "Installing $(TORCH) ..."
	@$(PIP) $(TORCH)
	@touch $@

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/.torch
	@echo "Installing abslrp for the demo ..."
	@$(PIP) -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/.app: pyproject.toml constraints.txt | $(VENV)/.torch
	@echo "Installing abslrp for the page ..."
	@$(PIP) -c constraints.txt -e '.[app]'
	@touch $(VENV)/.demo $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.torch
	@echo "Installing abslrp for development ..."
	@$(PIP) -c constraints.txt -e '.[demo,text,app,docs,cluster,datasets,dev]'
	@touch $(VENV)/.demo $(VENV)/.app $@
