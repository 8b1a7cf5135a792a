# Each target sets up what it needs: a fresh clone takes `make run` or `make test`, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test slow bench lint clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		--editable '.[test,lint]'
	touch $(READY)

run: $(READY)
	$(BIN)/r2et run adult

test: $(READY)
	$(BIN)/python -m pytest -m 'not slow'

slow: $(READY)
	$(BIN)/python -m pytest -m slow

bench: $(READY)
	$(BIN)/python benchmarks/ratios.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) runs
