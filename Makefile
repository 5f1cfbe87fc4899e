# Each of `make demo`, `make test` and `make docs` sets up all it needs on a fresh clone.
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TESTS_READY := $(VENV)/.tests-ready
DOCS_READY := $(VENV)/.docs-ready
# bytecode is written when a module is first imported: of most modules that are installed it never is
INSTALL := $(BIN)/pip install --progress-bar on --no-compile --constraint constraints.txt

LOWEST := .venv-lowest
NEWEST := .venv-newest

.PHONY: ready demo test test-all lowest newest fuzz lint check format docs notebooks lock audit sbom dist clean

demo: $(READY)  ## the main job: FedAvg, Local, FLT and Auto compared on digits with planted clusters
	$(BIN)/kinfed compare --out demo --force

test: $(TESTS_READY)  ## the tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup

test-all: $(TESTS_READY)  ## these and the dear ones: a federation over TLS, a report of 2,400 clients
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m ""

lowest: $(TESTS_READY)  ## the tests with the lowest version of everything that pyproject.toml allows
	python3 -m venv --clear $(LOWEST)
	$(BIN)/uv pip install --python $(LOWEST)/bin/python --resolution lowest-direct --editable '.[hub,flower,report,tensorboard,onnx,dev]'
	$(LOWEST)/bin/python -m pytest -n 2 --dist loadgroup

newest:  ## the tests with the newest of everything but torch, of which another version is gigabytes
	python3 -m venv --clear $(NEWEST)
	grep '^torch==' constraints.txt > $(NEWEST)/torch.txt
	$(NEWEST)/bin/pip install --no-compile --constraint $(NEWEST)/torch.txt --editable '.[hub,flower,report,tensorboard,onnx,dev]'
	$(NEWEST)/bin/python -m pytest -n 2 --dist loadgroup
	$(NEWEST)/bin/pip install --upgrade typer rich  # Flower wants older ones; who installs kinfed without it gets these
	$(NEWEST)/bin/python -m pytest -n 2 --dist loadgroup -m 'not flower and not on_demand'

ready: $(TESTS_READY)  ## all that the tests need

fuzz: $(TESTS_READY)  ## malformed input of every kind: what ends in a traceback, a hang or silence
	$(BIN)/python -m tests.fuzz.cases 2400 0

lint: $(TESTS_READY)  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test  ## all that CI checks

format: $(TESTS_READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(DOCS_READY)  ## the documentation site, into site/; every link is checked
	$(BIN)/python -m website.build_site site
	@echo "open site/index.html"

notebooks: $(DOCS_READY)  ## runs docs/notebooks again and keeps what they show
	$(BIN)/python -m website.notebooks docs/notebooks/*.ipynb

$(READY): pyproject.toml constraints.txt
	@echo "1 of 3: a virtual environment in $(VENV)"
	python3 -m venv $(VENV)
	@echo "2 of 3: torch, the largest download"
	$(INSTALL) torch
	@echo "3 of 3: kinfed and what it needs"
	$(INSTALL) --editable '.[report]'
	touch $(READY)

# torch is compiled while pip installs the rest; what the tests never import is not compiled
NEVER := /tests?/|site-packages/(pip|setuptools|mypyc?|pygments/lexers|torch/testing/_internal)/
NEVER := $(NEVER)|site-packages/ray/(rllib|serve|tune|train|llm|data)/|site-packages/sympy/(physics|stats|vector)/
COMPILE := $(BIN)/python -m compileall -q -x '$(NEVER)'

$(TESTS_READY): pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	@echo "1 of 3: torch, the largest download"
	$(INSTALL) torch
	@echo "2 of 3: kinfed, and what the tests need: Flower, ONNX, trackers, linters"
	$(COMPILE) $(VENV)/lib/python*/site-packages/torch > /dev/null 2>&1 & \
	    $(INSTALL) --editable '.[hub,flower,report,tensorboard,onnx,dev]'; installed=$$?; wait; exit $$installed
	@echo "3 of 3: bytecode, on all cores: warnings that modules give when they are compiled are no errors of the tests"
	-@$(COMPILE) -j 0 $(VENV)/lib > /dev/null 2>&1
	touch $(READY) $(TESTS_READY)

$(DOCS_READY): $(TESTS_READY)
	$(INSTALL) --quiet --editable '.[docs]'
	touch $(DOCS_READY)

LOCKED := hub flower report tensorboard privacy onnx dev docs
lock: $(TESTS_READY)  ## requirements.lock: every version of constraints.txt with the hashes of its files
	$(BIN)/uv pip compile pyproject.toml $(LOCKED:%=--extra %) --constraint constraints.txt --generate-hashes \
	    --python-version 3.11.5 --python-platform x86_64-manylinux_2_28 --no-annotate --quiet \
	    --custom-compile-command "make lock" --output-file requirements.lock

audit: $(TESTS_READY)  ## known holes of what requirements.lock pins; asks pypi.org
	$(BIN)/uvx pip-audit@2.10.1 --requirement requirements.lock --require-hashes --disable-pip --strict

sbom: $(TESTS_READY)  ## sbom.json: what requirements.lock pins, in CycloneDX
	$(BIN)/uvx --from cyclonedx-bom==7.5.0 cyclonedx-py requirements requirements.lock --output-file sbom.json

dist: $(TESTS_READY)  ## a release: sdist, and the wheel that is built from it, into dist/
	$(BIN)/uv build --no-build-isolation --python $(BIN)/python

clean:
	rm -rf $(VENV) $(LOWEST) $(NEWEST) demo runs site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
