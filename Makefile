PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: transfer checks configs docs notebooks parity pods torture mutants test test-changed test-slow test-part test-foreign lint dist lock clean

# The main job: where does the best learning rate go with depth and width? 4 minutes on 2 cores.
transfer: $(VENV)/ready
	$(BIN)/python main.py sweep --config=configs/transfer.py --workdir=runs/digits_transfer

# Coordinate checks of every family of models; writes docs/checks.md. About two hours on 2 cores; goes on where it stopped.
checks: $(VENV)/ready
	$(BIN)/python -m experiments.coordinate_checks
	$(BIN)/python -m experiments.documents

# configs/default.py and docs/settings.md, from the declarations of the settings.
configs: $(VENV)/ready
	$(BIN)/python -m depthmup.cli.write_config > configs/default.py
	$(BIN)/python -m depthmup.cli.write_config docs > docs/settings.md

# The site that people read, into site/: open site/index.html; needs no network to be read.
docs: .venv-docs/ready
	PATH="$(CURDIR)/.venv-docs/bin:$$PATH" NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --clean

# The outputs of docs/notebooks/*.ipynb, written into the files. About five minutes on 2 cores.
notebooks: .venv-docs/ready
	PATH="$(CURDIR)/.venv-docs/bin:$$PATH" .venv-docs/bin/python docs/extra/notebooks.py

# What builds the site and what the notebooks need, with the pins of requirements.txt.
.venv-docs/ready: pyproject.toml requirements.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -c requirements.txt -e ".[docs,run,theory]"
	@touch $@

# The models against PyTorch, given the same weights; writes tests/golden/, which the tests compare with.
parity: $(VENV)/ready
	$(BIN)/python -c "import torch" 2> /dev/null || $(BIN)/python -m pip install --quiet -e ".[bench]"
	$(BIN)/python -m tests.parity

# Programs for TPU slices by the TPU's own compiler, on this machine, and what they must have. Minutes for each of them.
pods: $(VENV)/ready
	@$(BIN)/python -c "import libtpu" || { echo "make pods needs the TPU's compiler: $(BIN)/python -m pip install -e '.[tpu]'"; exit 1; }
	$(BIN)/python -m pytest -s -m pods -o faulthandler_timeout=0

# Runs and sweeps killed 50 times each, compared with some that were left alone (docs/training.md). 15 minutes.
torture: $(VENV)/ready
	$(BIN)/python -m tests.torture 50 runs/torture

# Faults planted one at a time, and whether tests see them. Those that guard rules and theory, in an hour; or with FILES=,
# such as FILES=depthmup/schedules.py, those that Cosmic Ray makes of these files' lines (TESTS=: with these tests).
mutants: $(VENV)/ready
	$(BIN)/python -c "import cosmic_ray" 2> /dev/null || $(BIN)/python -m pip install --quiet -c requirements.txt -e ".[mutants]"
	$(BIN)/python -m tests.mutants $(FILES) $(if $(TESTS),--tests $(TESTS))

# Lint, types and tests.
test: lint
	$(PYTEST) -m "not slow and not pods"

# Of these tests those that a change can reach since they last passed (tests/reach.py).
test-changed: lint
	$(PYTEST) -m "not slow and not pods" --changed

# The tests that are slow by nature: several processes, kills, long coordinate checks, the documents' Python.
test-slow: $(VENV)/ready
	$(PYTEST) -m slow

# An eighth of all tests, fast and slow: PART=0/8 to 7/8.
test-part: $(VENV)/ready
	$(PYTEST) -m "not pods" --part $(PART)

# The models of other packages, which `make test` passes over where these are not installed; programs with other codebases.
test-foreign: .venv-foreign/ready .venv-codebases/ready
	.venv-codebases/bin/python -m pytest tests/foreign/test_codebases.py
	.venv-foreign/bin/python -m pytest -n 2 tests/foreign tests/test_own_model.py

.venv-foreign/ready: pyproject.toml requirements.txt
	$(PYTHON) -m venv .venv-foreign
	grep -vE "^(huggingface-hub|tokenizers)=" requirements.txt > .venv-foreign/constraints.txt  # transformers of Flax want older ones
	.venv-foreign/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-foreign/constraints.txt \
	  -e ".[foreign,run,dev]" equinox
	@touch $@

.venv-codebases/ready: pyproject.toml
	$(PYTHON) -m venv .venv-codebases
	.venv-codebases/bin/python -m pip install --quiet --disable-pip-version-check -e ".[codebases]" pytest
	@touch $@

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The wheel and the sdist, in dist/, tried in empty environments of each Python that is here; downloads what they need.
dist:
	$(PYTHON) -m tests.dist $(PYTHONS)

# Everything the project needs, in $(VENV), a folder for each PYTHON; made anew when the pins change.
$(VENV)/ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "depthmup needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

# New pins from the ranges of pyproject.toml, for all Python versions at once; needs uv.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --no-annotate --custom-compile-command 'make lock' --extra run --extra dev \
	  --extra theory --extra tokens --upgrade pyproject.toml -o requirements.txt

clean:
	rm -rf .venv .venv-* site .pytest_cache .ruff_cache .mypy_cache
