# The commands of this repository. `make demo` and `make test` do all their own set-up.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-faults check format bench lock clean

BIN := .venv/bin

help: ## list these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: ## make .venv from the lock; find or install the servers' programs
	@scripts/setup

demo: setup ## render statements, kill a consumer on the way, verify; BROKER=rabbitmq: hints, and kill that, too
	@$(BIN)/python -m examples.statements.demo

test: setup ## the whole test suite, on private servers
	@$(BIN)/python -m pytest -n 2 --dist loadgroup

test-faults: setup ## the broker cut, frozen, restarted, emptied and alarmed under real processes
	@$(BIN)/python -m pytest -n 2 --dist load --maxschedchunk 1 tests/faults

check: setup ## the gate before every commit: lint, types, layers, fast tests
	@scripts/check

format: setup ## rewrite files as `make check` wants them
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .

bench: setup ## the speed floor, as multiples of this machine's bare commits
	@$(BIN)/python -m benchmarks

lock: ## resolve requirements.lock anew
	@scripts/lock

clean: ## remove what was made
	@rm -rf .venv .bellwire dist build out .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
