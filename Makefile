# Two commands do everything: `make demo` and `make test`. The rest is for daily work.
VENV ?= .venv
PY := $(VENV)/bin/python
SEEDS ?= 200
SEED ?= 0
CASES ?= 1000000
STAMP := $(VENV)/.installed
BUILT := src/trainmaster/_compiled.json
TYPES := $(shell find src -name '*.pxd')
SOURCES := $(wildcard $(TYPES:.pxd=.py))
CORE_TESTS := tests/unit/core tests/unit/engine tests/unit/sim tests/unit/policies/gavel

.PHONY: setup check test core-forms kube kube-long dst fuzz replay bench live-study demo tutorial clean

setup: $(STAMP) $(BUILT)

$(STAMP): pyproject.toml
	test -x $(PY) || python3 -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

$(BUILT): $(STAMP) $(TYPES) $(SOURCES) hatch_build.py  ## compiles the core in place; only what has changed
	$(PY) hatch_build.py

check: setup  ## format, lint, types, fast tests
	$(VENV)/bin/ruff format --check src tests bench
	$(VENV)/bin/ruff check src tests bench
	$(VENV)/bin/pyright --warnings
	$(PY) -m pytest -n 2 -m 'not slow' --ignore=tests/kubernetes tests

test: setup  ## everything: unit, property, golden, fault simulation, live, then Kubernetes
	$(PY) -c "import trainmaster.core.build_form as b; assert b.form() == 'compiled', b.form()"
	$(PY) -m pytest -n 3 --ignore=tests/kubernetes tests
	$(MAKE) core-forms
	$(MAKE) kube

core-forms: setup  ## the core's tests uncompiled, and with bounds checks on a copy in build/
	TRAINMASTER_PURE=1 $(PY) -m pytest -n 2 -m 'not slow' $(CORE_TESTS)
	$(PY) tests/lib/support/bounds_checked.py -n 2 -m 'not slow' $(CORE_TESTS) tests/dst/test_world.py

kube: setup  ## on a real Kubernetes cluster; one test at a time, since there is one cluster with real nodes
	$(PY) -m pytest -rsR -m 'not long' tests/kubernetes

kube-long: setup  ## installation by helm and elastic training on real kubelets: many minutes
	$(PY) -m pytest -m long tests/kubernetes

dst: setup  ## fault simulation of the engine, of the control plane, of the Kubernetes backend: make dst SEEDS=1000
	$(PY) -m trainmaster.dst.engine.world --seeds $(SEEDS) --processes 2
	$(PY) -m trainmaster.dst.control_plane.world --seeds $(SEEDS) --processes 2
	$(PY) -m trainmaster.dst.kubernetes.world --seeds $(SEEDS) --processes 2

fuzz: setup  ## random input on every way in: make fuzz CASES=1000000 SEED=1
	PYTHONPATH=tests/lib:tests/unit/service $(PY) -m support.fuzz --cases $(CASES) --seed $(SEED)

replay: setup  ## one fault seed, told event by event: make replay SEED=42
	$(PY) -m trainmaster.dst.engine.world --replay $(SEED)

bench: setup
	for b in bench/bench_*.py; do $(PY) $$b || exit 1; done

tutorial: setup  ## the figures of docs/tutorial.md
	rm -rf out/tutorial
	$(PY) -m trainmaster compare demo --policies fifo,fifo:backfill=true,sjf,srtf,las,tiresias \
	  --cluster v100=16x4,p100=8x4,k80=8x4 --throughputs builtin --restart-cost 30 \
	  --loads 0.7,1,1.3 --seeds 10 --out out/tutorial --figures
	for f in docs/tutorial/*; do cp out/tutorial/figures/$$(basename $$f) docs/tutorial/; done

live-study: setup  ## five schedulers with 16 real elastic PyTorch jobs each, beside their simulation: over an hour
	$(PY) -m support.live_study --out out/live-study

demo: setup
	$(PY) -m trainmaster demo

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis out build $(BUILT)
	find src -name "*.abi3.so" -delete
