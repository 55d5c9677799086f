# Everything a person types. Each target sets up what it needs first (.ci/setup: quick when nothing is missing).

PYTHON := .venv/bin/python
SHELL_FILES := .ci/run .ci/setup deploy/krew/kubectl-koordebpf tests/cluster/node.sh tests/vm/guest.sh $(wildcard vagrant/provision/*.sh) \
	$(wildcard tests/node/files/usr/local/sbin/*) \
	vagrant/scenarios/run vagrant/scenarios/node.sh $(foreach each,allow kill limit protect provoke serve spin stop,$(wildcard vagrant/scenarios/*/$(each))) \
	$(wildcard vagrant/scenarios/neighbours/*)

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-cluster test test-all test-kernels test-node test-minors test-python cover mutate same fuzz soak lint bench felt bpf workloads wheel man site cast release release-check clean

help: ## Show this list.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|' 2>/dev/null \
		|| sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1   \2/p' Makefile

setup: ## Install what is missing: packages, .venv, BPF objects.
	@.ci/setup

demo: setup ## Watch a node cgroup be eaten and saved, on this kernel.
	@$(PYTHON) -m koordebpf demo

demo-cluster: ## Watch an eviction on a real Kubernetes node (root).
	@.ci/setup cluster
	@$(PYTHON) -m tests.cluster.demo

test: setup ## Run all but slow tests and other kernels (5 minutes); CHANGED=1: what a change reaches.
	@$(PYTHON) $(if $(CHANGED),-m tests.changed,tests/run.py --quick)

test-all: setup ## Run every test on every kernel, for hours; KERNELS="6.1-v1 6.12": on these.
	@$(PYTHON) tests/run.py $(if $(KERNELS),--kernels "$(KERNELS)")

test-kernels: ## Run host tests on other kernels; KERNELS="6.1 6.12": these.
	@.ci/setup vm
	@$(PYTHON) -m tests.vm $(KERNELS)

SUITE := trixie
test-node: setup ## Run tests on a Kubernetes node in QEMU (root); SUITE=bookworm.
	@KOORDEBPF_NODE_SUITE=$(SUITE) $(PYTHON) tests/run.py node

test-minors: setup ## Run a few tests on each Kubernetes; MINORS="1.36 1.37": these (root).
	@.ci/setup cluster
	@.ci/setup node
	@$(PYTHON) -m tests.minors $(MINORS)

cover: setup ## Gate coverage of pure code (2 minutes); LIVE=1: show agent, act, kube.
	@$(PYTHON) -m tests.cover $(if $(LIVE),--live,--gate)

mutate: setup ## Change code at random and see whether tests notice; ROOM=kube: there, CHANGED=1: what differs from main.
	@$(PYTHON) -m tests.mutate $(if $(ROOM),--room $(ROOM)) $(if $(CHANGED),--changed)

test-python: setup ## Run pure tests on the oldest and the newest Python.
	@$(PYTHON) -m tests.pythons

soak: setup ## Let the agent evict on a busy node, stop it there again and again, then bursts, a storm, plugins (root).
	@$(PYTHON) -m tests.host.soak
	@$(PYTHON) -m tests.host.soak --minutes 5 --late
	@$(PYTHON) -m tests.host.soak --minutes 5 --late --kubepods
	@KOORDEBPF_BURSTS=100 KOORDEBPF_STORM_S=120 $(PYTHON) tests/run.py host -- -k "test_bursts or test_faults_storm"
	@KOORDEBPF_RECORDER_KILLS=1000 $(PYTHON) tests/run.py unit -- -k test_recorder_killed
	@KOORDEBPF_PLUGIN_CHURN_S=600 $(PYTHON) tests/run.py contract -- -k test_plugin_churn

SECONDS := 60
same: setup ## Compare what is decided, written and printed with the commit of tests/same.txt (root).
	@$(PYTHON) -m tests.same

fuzz: setup ## Decode mutated bytes for a minute; SECONDS=3600: an hour.
	@$(PYTHON) -m tests.fuzz --seconds $(SECONDS)

lint: setup ## Check style, types, architecture, pages, shell and C.
	@echo '  ruff check'        && $(PYTHON) -m ruff check --quiet .
	@echo '  ruff format'       && $(PYTHON) -m ruff format --quiet --check .
	@echo '  mypy --strict'     && $(PYTHON) -m mypy --no-error-summary
	@echo '  import contracts'  && .venv/bin/lint-imports > .make/lint-imports.txt || { cat .make/lint-imports.txt; exit 1; }
	@echo '  shellcheck'        && .venv/bin/shellcheck $(SHELL_FILES)
	@echo '  hadolint'          && .venv/bin/hadolint deploy/image/Dockerfile
	@echo '  clang-format'      && .venv/bin/clang-format --dry-run --Werror tests/workloads/*.[ch] tests/workloads/preload/*.c
	@echo '  rules of ours'     && $(PYTHON) -m pytest -q --numprocesses=2 --dist=loadfile tests/rules

bench: setup ## Measure the figures of docs/figures.md: JSON and a table (root).
	@$(PYTHON) -m tests.bench

felt: ## Measure what applications feel of hogs, 30 minutes (root); APPS=redis HOGS=anon,cpu WAYS=nothing,all: these.
	@.ci/setup felt
	@$(PYTHON) -m tests.felt $(if $(APPS),--apps $(APPS)) $(if $(HOGS),--hogs $(HOGS)) $(if $(WAYS),--ways $(WAYS)) $(if $(SWAP),--swap $(SWAP))

bpf: ## Compile the BPF objects.
	@$(MAKE) --no-print-directory -C bpf

workloads: ## Compile the known loads that tests and measurements use.
	@$(MAKE) --no-print-directory -C tests/workloads

wheel: setup ## Build dist/*.whl with the BPF objects inside.
	@$(PYTHON) -m hatchling build -t wheel

man: setup ## Write manual pages to build/man.
	@$(PYTHON) .ci/man.py build/man

site: setup ## Build the documentation as a site in build/site, links checked.
	@$(PYTHON) .ci/site.py build/site

cast: setup ## Record the demo on a terminal and draw it, docs/cast (root).
	@$(PYTHON) docs/cast/record.py record
	@$(PYTHON) docs/cast/record.py draw

release: setup ## Write all that is published to dist/release (root).
	@$(PYTHON) .ci/release.py dist/release

release-check: setup ## Build a release twice and compare, 10 minutes (root).
	@KOORDEBPF_RELEASE_IMAGE=1 $(PYTHON) -m pytest -q tests/contract/test_release.py

clean: ## Remove what was built; keep .venv.
	@$(MAKE) --no-print-directory -C bpf clean
	@$(MAKE) --no-print-directory -C tests/workloads clean
	@rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
