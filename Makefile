# Two commands do everything: `make demo` and `make test`. The rest is for daily work.
VENV ?= .venv
PY := $(VENV)/bin/python
SEEDS ?= 200
SEED ?= 0
STAMP := $(VENV)/.installed

.PHONY: setup check test dst replay bench demo golden-accept clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(PY) || python3 -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

check: setup  ## format, lint, types, fast tests
	$(VENV)/bin/ruff format --check src tests bench
	$(VENV)/bin/ruff check src tests bench
	$(VENV)/bin/pyright --warnings
	$(PY) -m pytest -n 2 -m 'not slow' tests

test: setup  ## everything: unit, property, golden, fault simulation
	$(PY) -m pytest -n 2 tests

dst: setup  ## fault simulation: make dst SEEDS=1000
	$(PY) -m trainmaster.sim.world --seeds $(SEEDS) --processes 2

replay: setup  ## one fault seed, told event by event: make replay SEED=42
	$(PY) -m trainmaster.sim.world --replay $(SEED)

bench: setup
	for b in bench/bench_*.py; do $(PY) $$b || exit 1; done

golden-accept: setup  ## rewrite the reviewed summaries after a wanted change
	TRAINMASTER_GOLDEN_ACCEPT=1 $(PY) -m pytest tests/golden

demo: setup
	$(PY) -m trainmaster demo

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis out
