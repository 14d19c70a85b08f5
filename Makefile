# Every target makes what it needs: `make demo` and `make test` work as the first command on a fresh machine.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
BIN := .venv/bin
# A Python that somebody names is the environment's, or there is none yet.
ifneq ($(and $(filter-out file,$(origin PYTHON)),$(wildcard $(BIN)/.made),$(filter-out clean,$(MAKECMDGOALS))),)
VERSION := import sys; print(sys.version.split()[0])
ifneq ($(shell "$(PYTHON)" -c '$(VERSION)' 2>&1),$(shell $(BIN)/python -c '$(VERSION)'))
$(error .venv was made of another Python than PYTHON=$(PYTHON): make clean, and once more)
endif
endif
# Without it each of hundreds of test processes would compile Tidegauge anew.
unexport PYTHONDONTWRITEBYTECODE
# Scripts and tests that call make are no part of this one's jobs.
unexport MAKEFLAGS
RIG := .rig
RAYJOBS := .rayjobs
TRAINERS := .trainers
ESTIMATE := .estimate
# One rig for each requirements/rig-VERSION.txt: releases of torch with allocators of their own, the oldest tried, the newest.
RIGS := $(patsubst requirements/rig-%.txt,%,$(wildcard requirements/rig-*.txt))
# Further Pythons whose jobs are attached to, each with the rig's torch; one that this machine lacks is left out.
PYTHONS := 3.12 3.13 3.14

.PHONY: audit bench bench-fleet changelog chaos check clean dashboards demo docs durations environments estimate-venv fast format fuzz gpu help integration kubernetes layers lint matrix model pictures rayjobs report-packages rig rigs sbom slow smoke soak still system test test-all test-kubernetes trainers types venv

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 19

demo: $(BIN)/.made ## a leaking job, a healthy one, the verdict and a memory profile (no GPU needed; 90 s, the first time two minutes more; KEEP=1: its web page stays)
	@scripts/demo.sh $(if $(KEEP),--keep)

# The tiers: docs/testing.md. Each tier is its own target, and the last line of `make test` names the others.
test: check smoke ## the newcomer's tests: style, types, layers, fast tests, and the whole service once (8 minutes the first time)
	@smoke=smoke; [ -e $(RIG)/.made ] || smoke="but not smoke, for want of a rig"; \
	echo "passed: style, types, layers, fast tests, $$smoke. Further tiers: make slow, integration, matrix, gpu; all: make test-all"

test-all: check smoke slow integration matrix gpu ## every test that this machine can run (hours; needs root for much of it)

check: $(BIN)/.made lint types layers fast ## what must be green before a commit: style, types, layers, fast tests

fast: $(BIN)/.made model ## the fast tests: no server, no torch, no clock (PYTEST="-k NAME")
	$(BIN)/python -m pytest -n auto --tier fast -m "not slow" $(PYTEST)

slow: $(BIN)/.made model ## the rest of the hermetic tests, those that take long (PYTEST="-k NAME")
	$(BIN)/python -m pytest -n auto --tier slow -m slow $(PYTEST)

# Here, and not in each of the processes that would compile it at once.
model: $(BIN)/.made
	@$(BIN)/python scripts/compile_model.py

smoke: $(BIN)/.made rig ## the whole service once: two jobs on the rig, a verdict, a scrape
	$(BIN)/python -m pytest --tier smoke tests/integration/test_smoke.py

integration: environments model ## tests against real servers and the rig, in shards side by side (SHARDS=4 PYTEST="-k NAME")
	@scripts/integration.sh $(PYTEST)

matrix: $(BIN)/.made system rig ## tests under further torches, Pythons and Slurms, of the images and the units (CELLS="torch-2.15.0 slurm-trixie" PYTEST="--turn 0")
	@PYTEST="$(PYTEST)" scripts/matrix.sh $(CELLS)

durations: ## the slowest tests and fixtures of the last run of each tier
	@$(PYTHON) scripts/durations.py

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

changelog: $(BIN)/.made ## what is not released yet: the draft of the next section of CHANGELOG.md
	@$(BIN)/towncrier build --draft --version unreleased

dashboards: $(BIN)/.made ## write dashboards, rules and runbooks in deploy/observability (and in the chart) again
	$(BIN)/python -m tidegauge_exporter.dashboards deploy/observability/grafana/dashboards
	$(BIN)/python -m tidegauge_exporter.rules deploy/observability/prometheus/rules
	$(BIN)/python -m tidegauge_exporter.runbooks deploy/observability/prometheus/consoles/tidegauge-runbooks.html
	$(BIN)/python scripts/render_kubernetes.py

kubernetes: $(BIN)/.made ## write what is generated in the chart, and the plain manifests, again
	$(BIN)/python scripts/render_kubernetes.py

pictures: $(BIN)/.made ## draw the pictures of the dashboards again (462 MB of npm packages; not in the gate)
	scripts/preview/dashboards.sh

venv: $(BIN)/.made ## the virtual environment of the service and its developers

rig: $(RIG)/.made ## the fake-GPU rig: PyTorch's CUDA build on stub libraries (tests/fakegpu)

rigs: $(RIGS:%=$(RIG)/%/.made) $(PYTHONS:%=$(RIG)/%/.made) ## further rigs with other releases of torch (1.2 GB each) and other Pythons

rayjobs: $(RAYJOBS)/.made ## the environment of a user's own Ray cluster, for the tests of the Ray Jobs adapter

trainers: $(TRAINERS)/.made ## Lightning, Hugging Face and Ray Train on the rig's torch, for the tests of the integrations

estimate-venv: $(ESTIMATE)/.made ## a researcher's laptop, for the tests of the estimate: PyTorch without CUDA, transformers, torchvision

# A test in a shard reaches no registry.
report-packages: ## the npm packages of the report's page, so that a test can build it again
	@scripts/build_report_page.sh --packages || echo "no npm packages of the report's page: its test is skipped" >&2

environments: $(BIN)/.made system rig rayjobs trainers estimate-venv report-packages ## all that the integration tests need

system: ## Debian packages that the integration tests need (never asks anything)
	@scripts/system_packages.sh

bench: $(BIN)/.made rig trainers ## every figure of docs that needs no GPU
	@scripts/bench.sh

bench-fleet: $(BIN)/.made ## ten thousand ranks on two cores: an agent, the detector, the coordinator, and the curve (FLEET="--quick")
	@PYTHONPATH=bench $(BIN)/python -m fleet.run $(FLEET)

chaos: system $(BIN)/.made rig ## a three-node cluster in network namespaces whose parts are killed, cut off, filled, frozen (CHAOS="--only NAME"); needs root
	@PYTHONPATH=tests $(BIN)/python -m chaos $(CHAOS)

soak: $(BIN)/.made rig ## an hour of jobs that start and die: does anything of Tidegauge itself grow? (SOAK="--minutes 5")
	@PYTHONPATH=tests:bench $(BIN)/python -m soak $(SOAK)

still: $(BIN)/.made rig ## tests whose processes stand still at times: which depend on who is fast? (TESTS="tests/integration/…" STILL="--seed 7")
	@$(BIN)/python scripts/stand_still.py --told still.log $(STILL) -- $(BIN)/python -m pytest $(or $(TESTS),tests/integration)

fuzz: $(BIN)/.fuzz ## hostile input for every reader and the API; controls that must be found (FUZZ="--seconds 600")
	@PYTHONPATH=tests $(BIN)/python -m fuzz $(FUZZ)

audit: $(BIN)/.made ## known vulnerabilities of what is pinned (asks a service on the internet)
	@scripts/audit.sh

sbom: $(BIN)/.made ## what the service's environment is made of, as CycloneDX, in build/supply_chain/
	@scripts/sbom.sh

clean: ## remove what was made here
	rm -rf .venv .venv.unfinished .rig .rayjobs .trainers .estimate .slurm build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(BIN)/.made: pyproject.toml constraints.txt scripts/make_environment.sh
	@scripts/make_environment.sh --python "$(PYTHON)" .venv -e '.[dev]'
	@touch $@

$(BIN)/.fuzz: $(BIN)/.made
	@scripts/make_environment.sh --python "$(PYTHON)" .venv -e '.[fuzz]'
	@touch $@

# Only for the tests and the demo of a machine without a GPU. A rig that cannot be had is named and left out.
MAKES_RIGS := requirements/torch-imports.txt constraints.txt scripts/make_rig.sh scripts/make_environment.sh

$(RIG)/.made: requirements/rig.txt $(MAKES_RIGS) $(wildcard tests/fakegpu/*.py tests/fakegpu/csrc/* tests/fakegpu/inside/*) | $(BIN)/.made
	@scripts/make_rig.sh $(RIG) $<

$(RIGS:%=$(RIG)/%/.made): $(RIG)/%/.made: requirements/rig-%.txt $(MAKES_RIGS) | $(BIN)/.made
	@scripts/make_rig.sh $(RIG)/$* $<

$(PYTHONS:%=$(RIG)/%/.made): $(RIG)/%/.made: requirements/rig.txt $(MAKES_RIGS) | $(BIN)/.made
	@scripts/make_rig.sh $(RIG)/$* $< $*

$(RAYJOBS)/.made: requirements/rayjobs.txt constraints.txt scripts/make_environment.sh | $(BIN)/.made
	@echo "a user's Ray for the tests: installing ray[default] (about 110 MB, once)"
	@scripts/make_environment.sh --python $(BIN)/python $(RAYJOBS)/venv -r $<
	@touch $@

$(TRAINERS)/.made: requirements/trainers.txt constraints.txt scripts/make_environment.sh | $(BIN)/.made $(RIG)/.made
	@echo "trainers for the tests: installing Lightning, transformers, Ray Train (about 180 MB, once)"
	@scripts/make_environment.sh --python $(BIN)/python --sees $(RIG)/venv $(TRAINERS)/venv --no-deps -r $<
	@touch $@

$(ESTIMATE)/.made: requirements/estimate.txt constraints.txt scripts/make_environment.sh | $(BIN)/.made
	@echo "the estimate's tests: installing PyTorch's CPU build, transformers and torchvision (about 200 MB, once)"
	@scripts/make_environment.sh --python $(BIN)/python --wheels pip $(ESTIMATE)/venv -r $<
	@touch $@
