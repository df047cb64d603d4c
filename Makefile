# make demo: pictures of what a network saw, and a report on which method to believe.  make app: a page to look for yourself.  make test: the tests.  make check: lint, types, doctests.
# make docs: the site of the documentation.  make bench: what every method costs.  make bench-gae: what an evaluation costs.  make clean: remove the environment and what was written.
# make test-lowest: the tests with the lowest versions allowed.  make lock: pin all that the demo installs.  make audit: known weaknesses of it.  make build: a release.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
TORCH := $(shell grep '^torch==' constraints.txt)
LOWEST := .venv-lowest
# make test-lowest LOWEST_TORCH=2.4.0 LOWEST_TORCHVISION=0.19.0, where these have a build for this machine.
LOWEST_TORCH ?= $(patsubst torch==%,%,$(TORCH))
LOWEST_TORCHVISION ?= $(patsubst torchvision==%,%,$(shell grep '^torchvision==' constraints.txt))
LOWEST_TESTS := tests/unit tests/contract tests/reference tests/metrics tests/cli tests/experiments

.PHONY: demo app test check docs bench bench-gae test-lowest lock audit build clean

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
	@$(BIN)/python -m pytest --doctest-modules src --ignore-glob='*/triton_*.py'

docs: $(VENV)/.dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "$(CURDIR)/site/index.html"

bench: $(VENV)/.dev
	@$(BIN)/python -m benchmarks --batch 1 8 --methods all

bench-gae: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.gae --networks VGG16 ResNet50 ViT-Base/16

test-lowest: $(LOWEST)/.made
	@OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n 2 --dist loadgroup $(LOWEST_TESTS)

lock: $(VENV)/.made
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --dry-run --ignore-installed --report $(VENV)/lock.json -c constraints.txt $(TORCH) '.[demo]'
	@$(BIN)/python .ci/lock.py < $(VENV)/lock.json > $(VENV)/lock.new && mv $(VENV)/lock.new requirements-demo.lock
	@echo "$(CURDIR)/requirements-demo.lock"

audit: .venv-audit/.made
	@.venv-audit/bin/pip-audit --strict --disable-pip --progress-spinner off -r requirements-demo.lock || \
	  { echo "error: a weakness is known (see above), or the service that knows them was not reached or does not know a package."; exit 2; }

build: $(VENV)/.dev
	@$(BIN)/python -m build --no-isolation

clean:
	@rm -rf $(VENV) $(LOWEST) .venv-audit build dist site out abslrp-out .pytest_cache .mypy_cache .ruff_cache .hypothesis

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

# The versions of the lock, on the Python that it was made with; without its hashes, which hold for one kind of machine only.
$(VENV)/.demo: pyproject.toml constraints.txt requirements-demo.lock | $(VENV)/.torch
	@echo "Installing abslrp for the demo ..."
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' && sed 's/ --hash=.*//' requirements-demo.lock > $(VENV)/lock.txt || : > $(VENV)/lock.txt
	@$(PIP) -c constraints.txt -c $(VENV)/lock.txt -e '.[demo]'
	@touch $@

$(VENV)/.app: pyproject.toml constraints.txt | $(VENV)/.torch
	@echo "Installing abslrp for the page ..."
	@$(PIP) -c constraints.txt -e '.[app]'
	@touch $(VENV)/.demo $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.torch
	@echo "Installing abslrp for development ..."
	@$(PIP) -c constraints.txt -e '.[demo,text,app,docs,cluster,datasets,dev]'
	@touch $(VENV)/.demo $(VENV)/.app $@

$(LOWEST)/.made: pyproject.toml constraints-lowest.txt
	@echo "Making $(LOWEST) with torch $(LOWEST_TORCH) ..."
	@rm -rf $(LOWEST) && $(PYTHON) -m venv $(LOWEST)
	@$(LOWEST)/bin/python -m pip install -qq --disable-pip-version-check torch==$(LOWEST_TORCH)
	@$(LOWEST)/bin/python -m pip install -qq --disable-pip-version-check -c constraints-lowest.txt torch==$(LOWEST_TORCH) \
	  torchvision==$(LOWEST_TORCHVISION) -e '.[demo,text]' pytest pytest-xdist hypothesis
	@touch $@

.venv-audit/.made:
	@rm -rf .venv-audit && $(PYTHON) -m venv .venv-audit
	@.venv-audit/bin/python -m pip install -qq --disable-pip-version-check 'pip-audit>=2.7'
	@touch $@
