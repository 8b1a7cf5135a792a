# Each target sets up what it needs: a fresh clone takes `make run` or `make test`, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: run test slow bench imports strength exchange cheaper certificates cells contributions trees \
	verdicts repairs soundness tightness stream fuzz mutants results reasons claims pictures docs wheel lint clean

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.usable: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Setting up $(VENV): a minute or two, once."
	$(INSTALL) --editable .
	touch $@

$(VENV)/.testable: $(VENV)/.usable
	$(INSTALL) --editable '.[test,lint]'
	touch $@

$(VENV)/.documented: $(VENV)/.testable
	$(INSTALL) --editable '.[docs]'
	touch $@

run: $(VENV)/.usable
	$(BIN)/r2et reasons adult --width age=2 --width "hours per week=2"
	$(BIN)/r2et run adult --recipe first-look

test: $(VENV)/.testable
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'not slow'

slow: $(VENV)/.testable
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow $(ARGS)

bench: $(VENV)/.usable
	$(BIN)/python benchmarks/ratios.py

imports: $(VENV)/.usable
	$(BIN)/python benchmarks/imports.py

strength: $(VENV)/.usable
	$(BIN)/python benchmarks/strength.py

exchange: $(VENV)/.usable
	$(BIN)/python benchmarks/exchanges.py $(ARGS)

cheaper: $(VENV)/.usable
	$(BIN)/python benchmarks/cheaper.py

certificates: $(VENV)/.usable
	$(BIN)/python benchmarks/certificates.py

cells: $(VENV)/.usable
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/cells.py $(ARGS)

contributions: $(VENV)/.usable
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/contributions.py

trees: $(VENV)/.testable
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python benchmarks/trees.py

verdicts: $(VENV)/.testable
	OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python benchmarks/tree_verdicts.py $(ARGS)

repairs: $(VENV)/.testable
	OMP_NUM_THREADS=1 $(BIN)/python -m reproduction.reasons.repair $(ARGS)

soundness: $(VENV)/.usable
	$(BIN)/python benchmarks/soundness.py $(ARGS)

tightness: $(VENV)/.usable
	$(BIN)/python benchmarks/tightness.py

stream: $(VENV)/.usable
	$(BIN)/python benchmarks/stream.py

fuzz: $(VENV)/.testable
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/fuzz.py $(ARGS)

mutants: $(VENV)/.testable
	OMP_NUM_THREADS=1 $(BIN)/python tools/mutants.py $(ARGS)

results: $(VENV)/.usable
	$(BIN)/r2et reproduce all --rows docs/results --docs docs/results.md > /dev/null

reasons: $(VENV)/.usable
	OMP_NUM_THREADS=1 $(BIN)/python -m reproduction.reasons $(ARGS)

claims: $(VENV)/.usable
	$(BIN)/python -m reproduction.claims $(ARGS)

pictures: $(VENV)/.testable results
	$(BIN)/python tools/pictures.py

docs: $(VENV)/.documented
	$(BIN)/ruff check --quiet --select D1 --ignore D107 src
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: $(VENV)/.testable
	rm -rf build dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist .
	$(PYTHON) -m venv build/alone
	build/alone/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	build/alone/bin/python tools/run_page.py docs/start/*.md

lint: $(VENV)/.testable
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV)
