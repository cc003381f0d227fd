# One word per habit; `make help` lists them. `make run` and `make test` do all their own set-up.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
RUN_DIR := build/run
PYTEST_ARGS ?=
PYTEST := $(PY) -m pytest -q --no-loadscope-reorder
# Tests with processes wait for half of their time, so there is one more of them than cores.
WAITING := -n $(shell echo $$(($$(nproc) + 1)))
KEEP ?= 0
SMALL ?= 0
INSECURE ?= 0
RACKS ?= 0
PROFILES ?=
comma := ,
SEEDS ?= 300
FIRST ?= 1
WHAT ?= data

.PHONY: help procedures install java quick test test-all integration containers simulate lint fmt protos protos-check protos-baseline \
  clients run clean images up upgrade certificate logs ps down bench soak lock dist release

##@ Everyday

help: ## list the targets
	@awk -F':.*## ' '/^##@ /{print substr($$0, 5)} /^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## create .venv and install everything, hash-checked

$(STAMP): pyproject.toml requirements.lock scripts/install.sh
	@scripts/install.sh $(VENV)
	@touch $(STAMP)

java:
	@scripts/check_java.sh

quick: install ## ruff, mypy, unit tests and 20 seeds: two minutes on two cores
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(PYTEST) -n auto -m "not slow" tests/unit
	@$(PY) -m tests.simulation --seeds 20

test: install ## all tests but the slow ones (14 minutes); PYTEST_ARGS=tests/unit narrows it
	@$(PYTEST) $(WAITING) -m "not slow" --durations=10 $(PYTEST_ARGS)

test-all: install ## all tests, then the slow ones one by one (an hour): before a release
	@scripts/docker_engine.sh || echo "no Docker engine: the container tests will be skipped" >&2
	@result=0; $(PYTEST) $(WAITING) -m "not slow" --hypothesis-profile=thorough --durations=10 $(PYTEST_ARGS) || result=1; \
		$(PYTEST) -m slow --hypothesis-profile=thorough --durations=10 $(PYTEST_ARGS) || result=1; exit $$result

integration: install java ## only the tests with real processes, without the slow ones
	@$(PYTEST) $(WAITING) -m "not slow" tests/integration $(PYTEST_ARGS)

containers: install ## all tests with containers (20 minutes); starts an engine where it may
	@scripts/docker_engine.sh
	@$(PY) -m pytest -q tests/containers $(PYTEST_ARGS)

procedures: install ## run each page of docs/operations.md in containers; PAGES="rolling-restart certificates"
	@scripts/docker_engine.sh
	@PAGES='$(PAGES)' $(PY) -m pytest -q -s tests/containers/test_procedures.py $(PYTEST_ARGS)

simulate: install ## SEEDS=300 simulated clusters; SEED=42 shows one, RECORD=FILE records it; WILD=1: denser faults
	@$(PY) -m tests.simulation $(if $(WILD),--wild) $(if $(SEED),--seed $(SEED) $(if $(RECORD),--record $(RECORD)),--seeds $(SEEDS) --first $(FIRST))

lint: install protos-check ## ruff, mypy, buf; the contract may grow but not break
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@cd protos && ../$(VENV)/bin/buf lint && ../$(VENV)/bin/buf format -d --exit-code
	@cd protos && ../$(VENV)/bin/buf breaking --against baseline.binpb

fmt: install ## let ruff and buf put everything in form
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .
	@cd protos && ../$(VENV)/bin/buf format -w

protos: install ## write the committed stubs from protos/
	@scripts/gen_protos.sh services
	@$(PY) scripts/errors_table.py
	@if command -v go >/dev/null; then scripts/gen_go.sh; else echo "no Go here: the stubs in clients/go stay as they are"; fi

protos-check: ## compare the committed stubs with a fresh run
	@scripts/check_protos.sh

protos-baseline: install ## make protos/ the baseline that lint compares later changes with
	@cd protos && ../$(VENV)/bin/buf build --exclude-source-info -o baseline.binpb

clients: ## build and test the client libraries, and build the samples, whose toolchains are here
	@scripts/clients/all.sh

run: install java ## stream real flights through a cluster, kill a leader, read it with Spark; KEEP=1: and keep it
	@$(PY) -m examples.flights --directory $(RUN_DIR) $(if $(filter-out 0,$(KEEP)),--keep)

clean: ## remove the files that make run and other targets wrote, but not .venv
	@if [ -x $(PY) ]; then $(PY) -m examples.flights --directory $(RUN_DIR) --clean; fi
	@if [ -x $(VENV)/bin/paceline ]; then $(VENV)/bin/paceline dev down >/dev/null; fi
	@rm -rf build dist .mypy_cache .ruff_cache .hypothesis

##@ Cluster

images: ## build the images, from Debian packages without a registry; PROFILES=obs,pipeline
	@scripts/images.sh $(subst $(comma), ,$(PROFILES))

# SMALL=1: one ZooKeeper server; INSECURE=1: no TLS; RACKS=1: six brokers; PROFILES=load,obs,pipeline: more services.
up: images ## start docker-compose.yml; SMALL=1 INSECURE=1 RACKS=1 PROFILES=load,obs
	@SMALL=$(SMALL) INSECURE=$(INSECURE) RACKS=$(RACKS) PROFILES='$(PROFILES)' scripts/up.sh

upgrade: ## roll the running cluster to this checkout, one process at a time; paceline:previous keeps the old image
	@docker tag paceline:dev paceline:previous 2>/dev/null || true
	@$(MAKE) --no-print-directory up || { echo "back again: PACELINE_IMAGE=paceline:previous scripts/up.sh" >&2; exit 1; }

certificate: ## issue a certificate of that cluster for the client NAME
	@scripts/certificate.sh "$(NAME)"

logs: ## follow the logs of its containers
	@INSECURE=$(INSECURE) RACKS=$(RACKS) SMALL=$(SMALL) scripts/compose.sh logs -f --tail 100

ps: ## list its containers
	@INSECURE=$(INSECURE) RACKS=$(RACKS) SMALL=$(SMALL) scripts/compose.sh ps

down: ## stop it; its data stays unless VOLUMES=1
	@INSECURE=$(INSECURE) RACKS=$(RACKS) SMALL=$(SMALL) scripts/compose.sh down --remove-orphans $(if $(VOLUMES),-v)

##@ Measure

# The modules of benchmarks/ behind each WHAT. kafka, callers, groups, pipeline and python measure beside Kafka 3.9.1, whose
# jars come through Maven; callers and sizing need Go.
BENCH_data := data
BENCH_kafka := versus_kafka
BENCH_callers := callers
BENCH_control := control failover
BENCH_replicas := replicas
BENCH_groups := groups
BENCH_pipeline := pipeline
BENCH_security := security
BENCH_sizing := sizing
BENCH_python := python_clients
BENCH_moves := moves
BENCH_console := console
BENCH_gateway := gateway
BENCH_access := access
BENCH_quotas := quotas

bench: install java ## WHAT=data kafka callers control replicas groups pipeline python sizing security moves console gateway access quotas
	@$(foreach module,$(or $(BENCH_$(WHAT)),$(error make bench does not know WHAT=$(WHAT))),$(PY) -m benchmarks.$(module) --output build/bench/$(module).json &&) true

# faults, kills and suspicions take ROUNDS, outage SECONDS, groups MINUTES, steps RECORDS.
soak: install java ## long runs with SCENARIO=faults kills suspicions outage groups steps
	@$(PY) -m tests.soak $(SCENARIO) $(foreach name,rounds seconds minutes records,$(addprefix --$(name) ,$($(shell echo $(name) | tr a-z A-Z))))

##@ Release

lock: ## refresh the lock files of the packages
	@scripts/lock.sh

dist: install ## wheel, sdist, SBOM (CycloneDX) and list of licences, into dist/
	@scripts/dist.sh dist

release: install ## check that this commit can be released, and tag it with its version
	@$(PY) scripts/release.py
