# One word per habit; `make help` lists them. `make run` and `make test` do all their own set-up.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
RUN_DIR := build/run
PYTEST_ARGS ?=
IN_PARALLEL := -n auto --no-loadscope-reorder
KEEP ?= 0
SMALL ?= 0
INSECURE ?= 0
RACKS ?= 0
PROFILES ?=
comma := ,
SEEDS ?= 300
FIRST ?= 1
WHAT ?= data

.PHONY: help install java run test soak integration containers simulate lint fmt protos protos-baseline protos-check bench clients images up certificate logs ps down lock clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## create .venv and install everything, hash-checked

$(STAMP): pyproject.toml requirements.lock scripts/install.sh
	@scripts/install.sh $(VENV)
	@touch $(STAMP)

java: ## check that Java 17 or newer is there
	@scripts/check_java.sh

run: install java ## the main job: stream real flights through a cluster, kill a leader, read it all back with Spark
	@$(PY) -m examples.flights --directory $(RUN_DIR) $(if $(filter-out 0,$(KEEP)),--keep)

test: install ## every test this machine can run, and why the rest was skipped
	@$(PY) -m pytest -q $(IN_PARALLEL) $(PYTEST_ARGS)

soak: install java ## long runs with faults: SCENARIO=faults, kills, suspicions (each with ROUNDS), outage (SECONDS), groups (MINUTES) or steps (RECORDS)
	@$(PY) -m tests.soak $(SCENARIO) $(foreach name,rounds seconds minutes records,$(addprefix --$(name) ,$($(shell echo $(name) | tr a-z A-Z))))

integration: install java ## only the tests with real processes
	@$(PY) -m pytest -q $(IN_PARALLEL) tests/integration $(PYTEST_ARGS)

containers: install ## every test with containers (about 20 minutes); starts an engine where it may
	@scripts/docker_engine.sh
	@PACELINE_ALL_CONTAINERS=1 $(PY) -m pytest -q -m containers tests/containers $(PYTEST_ARGS)

simulate: install ## run SEEDS (300) simulated clusters from seed FIRST (1); SEED=42 replays one with its timeline; WILD=1: denser faults
	@$(PY) -m tests.simulation $(if $(WILD),--wild) $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --first $(FIRST))

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
	@if command -v cargo >/dev/null; then scripts/clients/rust.sh stubs; else echo "no Rust here: the stubs in clients/rust stay as they are"; fi

protos-baseline: install ## make protos/ the baseline that lint compares later changes with
	@cd protos && ../$(VENV)/bin/buf build --exclude-source-info -o baseline.binpb

protos-check: ## compare the committed stubs with a fresh run
	@scripts/check_protos.sh

# The modules of benchmarks/ behind each WHAT.
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

bench: install java ## measure WHAT=data, control, replicas, security or sizing; kafka, callers, groups, pipeline or python: beside Kafka 3.9.1 (jars through Maven); callers and sizing need Go; into build/bench
	@$(foreach module,$(or $(BENCH_$(WHAT)),$(error make bench does not know WHAT=$(WHAT))),$(PY) -m benchmarks.$(module) --output build/bench/$(module).json &&) true

clients: install ## build and test the client libraries whose toolchains are here (Go, Java, TypeScript, Rust, C++)
	@scripts/clients/all.sh

images: ## build the container images, from official bases or, without a registry, from Debian packages; PROFILES=obs,pipeline
	@scripts/images.sh $(subst $(comma), ,$(PROFILES))

up: images ## start the secured cluster of docker-compose.yml and wait until it is healthy; SMALL=1: one ZooKeeper server; INSECURE=1: no TLS; RACKS=1: six brokers; PROFILES=load,obs,pipeline: more services
	@SMALL=$(SMALL) INSECURE=$(INSECURE) RACKS=$(RACKS) PROFILES='$(PROFILES)' scripts/up.sh

certificate: ## issue a certificate of that cluster for the client NAME
	@scripts/certificate.sh "$(NAME)"

logs: ## follow the logs of its containers
	@INSECURE=$(INSECURE) RACKS=$(RACKS) scripts/compose.sh logs -f --tail 100

ps: ## list its containers
	@INSECURE=$(INSECURE) RACKS=$(RACKS) scripts/compose.sh ps

down: ## stop it; its data stays unless VOLUMES=1
	@INSECURE=$(INSECURE) RACKS=$(RACKS) scripts/compose.sh down --remove-orphans $(if $(VOLUMES),-v)

lock: ## refresh requirements.lock
	@scripts/lock.sh

clean: ## remove what make run and the other targets wrote, but not .venv
	@if [ -x $(PY) ]; then $(PY) -m examples.flights --directory $(RUN_DIR) --clean; fi
	@if [ -x $(VENV)/bin/paceline ]; then $(VENV)/bin/paceline dev down >/dev/null; fi
	@rm -rf build .mypy_cache .ruff_cache .hypothesis
