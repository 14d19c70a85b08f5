# Every target makes what it needs: `make demo` and `make test` work as the first command on a fresh machine.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
BIN := .venv/bin
RIG := .rig
RAYJOBS := .rayjobs
SLURM := .slurm
SLURM_RELEASES ?= trixie sid
TRAINERS := .trainers
ESTIMATE := .estimate
# Releases of torch whose own allocators the model is compared with: one of each rule, the oldest tried, the newest.
ALLOCATORS := 2.9.1 2.11.0 2.12.0 2.15.0
# Further Pythons whose jobs are attached to, each with the rig's torch; one that this machine lacks is left out.
PYTHONS := 3.12 3.13
# Integration tests that start no server and wait for nothing: two files at a time.
IN_STEP := tests/integration/allocator tests/integration/estimate tests/integration/holders
# torch's own warning about packages that a GPU would need is noise here: the rig is made without them on purpose.
PIP_FLAGS := --quiet --disable-pip-version-check

.PHONY: help demo test check fast integration gpu lint types layers format dashboards estimate-venv kubernetes pictures rig rigs rayjobs trainers venv system docs bench bench-fleet chaos soak still fuzz audit sbom clean test-kubernetes test-slurm-matrix

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 19

demo: $(BIN)/.made ## a leaking job, a healthy one, and the verdict, in under two minutes (no GPU needed)
	@scripts/demo.sh

test: system $(BIN)/.made rig rigs rayjobs trainers estimate-venv fast integration gpu ## all tests that this machine can run

check: $(BIN)/.made lint types layers fast ## what must be green before a commit: style, types, layers, fast tests

fast: $(BIN)/.made ## the fast tests (no server, no torch)
	@$(BIN)/python scripts/compile_model.py
	$(BIN)/python -m pytest -n auto

integration: $(BIN)/.made rig rigs rayjobs trainers estimate-venv ## tests against real servers: Ray, Prometheus, torch on the fake-GPU rig
	@$(BIN)/python scripts/compile_model.py
	$(BIN)/python -m pytest $(IN_STEP:%=--ignore=%) tests/integration
	$(BIN)/python -m pytest -n 2 --dist loadfile $(IN_STEP)

# Debian's suites: bookworm has 22.05, trixie 24.11, sid what is newest. Needs root and mmdebstrap; 25 s and 0.5 GB each.
test-slurm-matrix: $(BIN)/.made rig ## the Slurm tests on other releases of Slurm (SLURM_RELEASES="trixie sid")
	@for release in $(SLURM_RELEASES); do \
	  scripts/slurm_release.sh $$release $(SLURM)/$$release; \
	  echo "Slurm of $$release:"; \
	  TIDEGAUGE_SLURM_TREE=$(CURDIR)/$(SLURM)/$$release $(BIN)/python -m pytest tests/integration/slurm; \
	done

test-kubernetes: $(BIN)/.made rig ## the Kubernetes tests on a real API server (TIDEGAUGE_TEST_KUBECONFIG=FILE, its admin's)
	@test -n "$${TIDEGAUGE_TEST_KUBECONFIG:-}" || { echo "say TIDEGAUGE_TEST_KUBECONFIG=FILE: which API server?" >&2; exit 2; }
	$(BIN)/python -m pytest tests/integration/kubernetes

gpu: $(BIN)/.made ## tests on a real GPU; says so where there is none
	@if $(PYTHON) -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then \
	  $(BIN)/python -m pytest tests/gpu; \
	else echo "tests/gpu: not run, no GPU that $(PYTHON)'s torch can use"; fi

lint: $(BIN)/.made ## ruff
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(BIN)/.made ## mypy --strict
	$(BIN)/mypy

layers: $(BIN)/.made ## import-linter: the layers of docs/architecture.md
	$(BIN)/lint-imports

format: $(BIN)/.made ## ruff format and the fixes that are safe
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(BIN)/.made ## write the generated reference pages again
	$(BIN)/python scripts/generate_docs.py

dashboards: $(BIN)/.made ## write dashboards and rules in deploy/observability (and in the chart) again
	$(BIN)/python -m tidegauge_exporter.dashboards deploy/observability/grafana/dashboards
	$(BIN)/python -m tidegauge_exporter.rules deploy/observability/prometheus/rules
	$(BIN)/python scripts/render_kubernetes.py

kubernetes: $(BIN)/.made ## write what is generated in the chart, and the plain manifests, again
	$(BIN)/python scripts/render_kubernetes.py

pictures: $(BIN)/.made ## draw the pictures of the dashboards again (462 MB of npm packages; not in the gate)
	scripts/preview/dashboards.sh

venv: $(BIN)/.made ## the virtual environment of the service and its developers

rig: $(RIG)/venv/.made $(BIN)/.made ## the fake-GPU rig: PyTorch's CUDA build on stub libraries (tests/fakegpu)
	@$(RIG)/venv/bin/python tests/fakegpu/build.py

rigs: $(ALLOCATORS:%=$(RIG)/%/.made) $(PYTHONS:%=$(RIG)/%/.made) ## further rigs with other releases of torch (530 to 890 MB each) and other Pythons

rayjobs: $(RAYJOBS)/venv/.made ## the environment of a user's own Ray cluster, for the tests of the Ray Jobs adapter

trainers: $(TRAINERS)/venv/.made ## Lightning, Hugging Face and Ray Train on the rig's torch, for the tests of the integrations

estimate-venv: $(ESTIMATE)/venv/.made ## a researcher's laptop, for the tests of the estimate: PyTorch without CUDA, transformers, torchvision

system: ## Debian packages that the integration tests need (never asks anything)
	@scripts/system_packages.sh

bench: $(BIN)/.made rig trainers ## every figure of README and docs that needs no GPU
	@scripts/bench.sh

bench-fleet: $(BIN)/.made ## ten thousand ranks on two cores: an agent, the detector, the coordinator, and the curve (FLEET="--quick")
	@PYTHONPATH=bench $(BIN)/python -m fleet.run $(FLEET)

chaos: system $(BIN)/.made rig ## a three-node cluster in network namespaces whose parts are killed, cut off, filled, frozen (CHAOS="--only NAME"); needs root
	@PYTHONPATH=tests $(BIN)/python -m chaos $(CHAOS)

soak: $(BIN)/.made rig ## an hour of jobs that start and die: does anything of Tidegauge itself grow? (SOAK="--minutes 5")
	@PYTHONPATH=tests:bench $(BIN)/python -m soak $(SOAK)

still: $(BIN)/.made rig ## tests whose processes stand still at times: which depend on who is fast? (TESTS="tests/integration/…" STILL="--seed 7")
	@$(BIN)/python scripts/stand_still.py --told still.log $(STILL) -- $(BIN)/python -m pytest $(or $(TESTS),tests/integration)

fuzz: $(BIN)/.made ## hostile input for every reader and the API; controls that must be found (FUZZ="--seconds 600")
	@PYTHONPATH=tests $(BIN)/python -m fuzz $(FUZZ)

audit: $(BIN)/.made ## known vulnerabilities of what is pinned (asks a service on the internet)
	@scripts/audit.sh

sbom: $(BIN)/.made ## what the service's environment is made of, as CycloneDX, in build/supply_chain/
	@scripts/sbom.sh

clean: ## remove what was made here
	rm -rf .venv .rig .rayjobs .trainers .estimate .slurm .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(BIN)/.made: pyproject.toml constraints.txt
	@scripts/make_venv.sh "$(PYTHON)" .venv
	@$(BIN)/python -m pip install $(PIP_FLAGS) -c constraints.txt -e '.[dev]'
	@touch $@

# Only for the tests and the demo of a machine without a GPU. `===` picks the CUDA build where an index also has a CPU one.
$(RIG)/venv/.made: constraints.txt
	@scripts/make_venv.sh "$(PYTHON)" $(RIG)/venv
	@echo "the rig: installing PyTorch's CUDA build (about 530 MB, once)"
	@$(RIG)/venv/bin/python -m pip install $(PIP_FLAGS) --no-deps -c constraints.txt 'torch===2.13.0'
	@$(RIG)/venv/bin/python -m pip install $(PIP_FLAGS) -c constraints.txt \
	  filelock typing-extensions sympy networkx jinja2 fsspec numpy 2> >(grep -v 'torch 2.13.0 requires\|dependency resolver' >&2)
	@touch $@

$(ALLOCATORS:%=$(RIG)/%/.made): $(RIG)/%/.made: $(RIG)/venv/.made scripts/make_rig.sh | rig
	@scripts/make_rig.sh $(RIG)/$* $(RIG)/venv $*
	@touch $@

$(PYTHONS:%=$(RIG)/%/.made): $(RIG)/%/.made: $(RIG)/venv/.made scripts/make_rig.sh | rig
	@scripts/make_rig.sh $(RIG)/$* $(RIG)/venv 2.13.0 $*
	@[ ! -d $(RIG)/$*/venv ] || touch $@

# Users have ray[default]: it is never in the service's environment (docs/adr/0004-ray-jobs-over-rest.md).
$(RAYJOBS)/venv/.made: constraints.txt
	@scripts/make_venv.sh "$(PYTHON)" $(RAYJOBS)/venv
	@echo "a user's Ray for the tests: installing ray[default] (about 110 MB, once)"
	@$(RAYJOBS)/venv/bin/python -m pip install $(PIP_FLAGS) -c constraints.txt 'ray[default]==2.60.0'
	@touch $@

# Real frameworks on the rig's torch; pip must not bring another one (docs/integrations.md).
$(TRAINERS)/venv/.made: $(RIG)/venv/.made constraints.txt scripts/make_trainers.sh
	@scripts/make_trainers.sh "$(PYTHON)" $(TRAINERS)/venv $(RIG)/venv
	@touch $@

# PyTorch without CUDA where the index offers such a build (`==` prefers it); torchvision's compiled part stays unloaded.
$(ESTIMATE)/venv/.made: constraints.txt
	@scripts/make_venv.sh "$(PYTHON)" $(ESTIMATE)/venv
	@echo "the estimate's tests: installing PyTorch's CPU build, transformers and torchvision (about 200 MB, once)"
	@$(ESTIMATE)/venv/bin/python -m pip install $(PIP_FLAGS) -c constraints.txt 'torch==2.13.0' 'transformers==5.23.0' numpy
	@$(ESTIMATE)/venv/bin/python -m pip install $(PIP_FLAGS) --no-deps -c constraints.txt 'torchvision==0.28.0' pillow
	@touch $@
