# Build, test and benchmark targets. Each installs the tools it needs.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# PostgreSQL refuses to run as root. It then runs as another user, who must be able to enter its folder.
DATA ?= $(if $(filter 0,$(shell id -u)),/var/lib/queen,$(CURDIR)/data)

# The broker that `make bench-compare` compares with by default.
PEER ?= target/peer/bin/queen

# First seed of `make chaos`; each run uses the next one.
SEED ?= 1

help: ## list all targets
	@awk -F ':.*## ' '/^[a-z-]+( [a-z-]+)*:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: setup-run dashboard ## build and start Queen with its own PostgreSQL, in ./data (as root: /var/lib/queen)
	cargo run --profile quick --locked -p queen-server -- serve --data-dir $(DATA)

test: export TMPDIR := $(shell scripts/scratch)
test: setup-test dashboard ## all tests: unit tests, engine and server on a real PostgreSQL, clients, their packages, the dashboard
	$(MAKE) test-rust
	$(MAKE) -j5 --output-sync=target test-pages test-js test-python test-published test-package test-dashboard

test-rust:
	cargo build --locked --workspace --all-targets
	target/debug/queen-testkit --template 'target/debug/queen migrate' cargo nextest run --locked --workspace

# The broker that client tests run against.
test-broker: dashboard
	cargo build --locked -p queen-testkit -p queen-server

# `make test` runs these suites in parallel: they mostly wait, for leases to expire and brokers to restart.
test-package:
	cargo test --locked --doc -p queen-client
	cargo package --locked -p queen-client

test-dashboard:
	dashboard/run

test-steady: ## all tests 10 times (RUNS) on busy cores, or some suites (ONLY='rust js …'), with a table of durations
	scripts/steady

test-browser: setup-test dashboard ## the dashboard in a real browser against real brokers, three minutes
	cargo build --locked -p queen-server
	$(MAKE) test-pages

test-pages:
	dashboard/run browser

test-js test-python test-published: test-%:
	clients/$*/run

dashboard: ## build the dashboard to dashboard/dist/page; the next build of the broker includes it
	dashboard/run build

check: ## formatting and lint, with the release of Rust that Cargo.toml names
	@scripts/toolchain
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

tidy: ## hints for reviewers: the longest files and functions, wording habits
	@scripts/tidy

deny: ## licenses, duplicates and sources of all crates, and known vulnerabilities if the list is reachable
	@scripts/setup deny
	scripts/deny

fuzz: ## fuzz every parser of external input with a million inputs (RUNS, TARGETS), about ten minutes
	@scripts/setup fuzz
	fuzz/run $(TARGETS)

bench: setup-run ## the benchmark, about four minutes; see docs/benchmarks.md
	cargo build --release --locked -p queen-server -p queen-bench
	target/release/queen-bench run --queen target/release/queen --json target/bench.json

bench-quick: setup-chaos ## a short run of every benchmark command, to check that they work
	scripts/last-release
	cargo build --locked --workspace --all-targets
	$(MAKE) -j3 --output-sync=target quick-chaos quick-loads quick-others

quick-loads:
	target/debug/queen-bench run --queen target/debug/queen --quick
	target/debug/queen-bench compare --queen target/debug/queen --peer 'target/debug/queen serve' --quick \
		--scenario push-1,pop-wildcard-10,end-to-end --plots target/bench-quick --markdown target/bench-quick.md
	target/debug/queen-bench ceiling --queen target/debug/queen --quick --seconds 0.2 --scenario push-1,pop-wildcard-10,pop-specific-autoack-1
	target/debug/queen-bench growth --queen target/debug/queen --quick
	target/debug/queen-bench pinned --queen target/debug/queen --quick

quick-chaos:
	target/debug/queen-bench chaos --queen target/debug/queen --quick --seed 1
	target/debug/queen-bench chaos --queen target/debug/queen --quick --seed 1 --failover
	target/debug/queen-bench chaos --queen target/debug/queen --quick --seed 1 --upgrade-from $$(scripts/last-release)

quick-others:
	target/debug/queen-bench admin --queen target/debug/queen --quick
	target/debug/queen-bench client --queen target/debug/queen --quick
	target/debug/queen-bench soak --queen target/debug/queen --quick
	node --test bench/peers/harness/
	QUEEN_BIN=$(CURDIR)/target/debug/queen bench/peers/run queen pgboss --quick

chaos: setup-chaos ## two brokers under injected faults, 50 runs of a minute, then 10 failovers; see docs/reliability.md
	cargo build --release --locked -p queen-server -p queen-bench
	target/release/queen-bench chaos --queen target/release/queen --seed $(SEED) --runs 50 \
		--json target/chaos.json --markdown target/chaos.md
	target/release/queen-bench chaos --queen target/release/queen --seed $(SEED) --runs 10 --failover \
		--json target/failover.json --markdown target/failover.md

upgrade: setup-chaos ## previous and current release side by side under load, with all guarantees checked
	before=$$(scripts/last-release --release) && cargo build --release --locked -p queen-server -p queen-bench && \
		target/release/queen-bench chaos --queen target/release/queen --upgrade-from $$before

bench-ceiling: setup-run ## broker throughput relative to bare PostgreSQL, about half an hour
	cargo build --release --locked -p queen-server -p queen-bench
	target/release/queen-bench ceiling --queen target/release/queen \
		--json target/ceiling.json --markdown target/ceiling.md

bench-growth: setup-run ## cost per operation as partitions, groups, backlog, parked pops or payloads grow
	cargo build --release --locked -p queen-server -p queen-bench
	target/release/queen-bench growth --queen target/release/queen \
		--json target/growth.json --markdown target/growth.md

bench-pinned: setup-run ## throughput for five minutes without and five with a long-running transaction
	cargo build --release --locked -p queen-server -p queen-bench
	target/release/queen-bench pinned --queen target/release/queen \
		--json target/pinned.json --markdown target/pinned.md

bench-admin: setup-run ## admin requests on a queue with 100,000 partitions under load, and the cost of statistics
	cargo build --release --locked -p queen-server -p queen-bench
	target/release/queen-bench admin --queen target/release/queen \
		--json target/admin.json --markdown target/admin.md

bench-client: setup-run ## CPU cost per message of the Rust client compared with the broker, a minute
	cargo build --release --locked -p queen-server -p queen-bench
	target/release/queen-bench client --queen target/release/queen \
		--json target/client.json --markdown target/client.md

soak: setup-run ## half an hour below peak load, then half an hour with a long-running transaction, to find leaks
	cargo build --release --locked -p queen-server -p queen-bench
	target/release/queen-bench soak --queen target/release/queen --json target/soak.json --markdown target/soak.md

bench-compare: setup-run $(filter target/peer/%,$(PEER)) ## compare with another broker (PEER='COMMAND'), three runs each
	cargo build --release --locked -p queen-server -p queen-bench
	target/release/queen-bench compare --queen target/release/queen --peer '$(PEER)' \
		--json target/compare.json --markdown target/compare.md --plots target/compare

target/peer/bin/queen:
	cargo install --locked --quiet --root target/peer --version 1.3.0 queen-engine

bench-nats bench-rabbitmq bench-pgboss: bench-%: setup-run ## compare with another queue; see bench/peers/README.md
	cargo build --release --locked -p queen-server
	bench/peers/run queen $* --json target/peers-$*.json

# The test of options writes the files that are out of date, and then fails; the second run passes.
docs: ## write everything that is generated from settings, routes and options of queues
	cargo test -q --locked -p queen-protocol --test options || cargo test -q --locked -p queen-protocol --test options
	cargo run -q --locked -p queen-server -- config --markdown > docs/configuration.md
	cargo run -q --locked -p queen-server -- openapi > docs/openapi.json
	python3 clients/python/tools/shapes.py > clients/python/src/queen_client/shapes.py
	dashboard/run types

setup-run:
	@scripts/setup postgres

setup-chaos: setup-run
	@scripts/setup faketime

setup-test:
	@scripts/setup postgres nextest python node chromium

.PHONY: help run test test-steady test-rust test-broker dashboard check tidy deny fuzz bench bench-quick chaos upgrade bench-ceiling bench-growth bench-pinned bench-admin bench-client soak bench-compare bench-nats bench-rabbitmq bench-pgboss docs setup-run setup-chaos setup-test test-package test-dashboard test-browser test-pages test-js test-python test-published quick-loads quick-chaos quick-others
