# Each of `make demo` and `make test` sets up all it needs on a fresh clone.
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint check format clean

demo: $(READY)  ## the main job: FedAvg, Local and FLT compared on embedded digits with planted kinships
	$(BIN)/kinfed compare --out demo --force

test: $(READY)  ## all tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup

lint: $(READY)  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test  ## all that CI checks

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(READY): pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[hub,flower,dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) demo runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
