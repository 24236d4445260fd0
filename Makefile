# Everything that a person types. As root, on Debian 12; what is missing is installed first.
.POSIX:
.SUFFIXES:
.PHONY: help setup demo test test-unit test-full test-e2b test-mutations test-firecracker lab fuzz soak bench lint lock clean
.NOTPARALLEL:

# Resolved, so that a process shows which runtime it needs: an upgrade keeps that one.
PYTHON = $$(readlink -f /opt/space/current)/bin/python

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | awk -F '\t' '{ printf "  make %-10s %s\n", $$1, $$2 }'

setup: ## make this machine ready: packages, runtime, storage, guest kernel, base template (quiet when it is)
	@setup/bootstrap

demo: setup ## run a real library's test suite in a sandbox, step by step
	@$(PYTHON) demo/demo.py

test: ## set up, then every check and test: what CI runs
	@setup/bootstrap --tests
	@setup/check all

test-full: ## the same with the long tier
	@setup/bootstrap --tests
	@setup/check full

test-unit: ## what needs no guest: unit, contract, golden, property and short fuzz tests
	@setup/bootstrap --tests
	@setup/check unit

test-e2b: ## E2B's own SDKs, unmodified, against a server with real guests: ends with what passed and failed
	@setup/bootstrap --tests
	@setup/check e2b

test-mutations: ## weaken one defence after another: each must fail its tests; the table is report/mutations.md
	@setup/bootstrap --tests
	@setup/check mutations

lab: ## make the machine in which Firecracker runs for real, without hardware virtualization too, and save it
	@setup/bootstrap --tests
	@setup/lab build

test-firecracker: ## the contract of VMMs and whole lives on the real Firecracker and its jailer, in the lab (docs/lab.md); not part of `make test` yet
	@setup/bootstrap --tests
	@setup/lab test

fuzz: ## every parser of hostile bytes for ten minutes, two side by side; what is found goes into tests/fuzz/corpus
	@setup/bootstrap --tests
	@setup/check fuzz

lint: ## ruff, mypy, import contract, rustfmt, clippy
	@setup/bootstrap --tests
	@setup/check lint

soak: ## mixed work for ten minutes while every process is killed in turn: nothing lost, nothing left, nothing slower
	@setup/bootstrap --tests
	@setup/check soak

bench: setup ## measure, print ratios (SECTIONS=... for some)
	@$(PYTHON) -m bench $(SECTIONS)

lock: ## resolve the dependencies anew (for maintainers)
	@PYTHONPATH=src /usr/bin/python3 -s -m space.setup.lock

clean: ## take everything off this host that space put there; Debian packages stay
	@setup/clean
