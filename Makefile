# The commands of this repository. `make quickstart` and `make test` set up everything they need on a bare machine with Rust.
CARGO ?= cargo
STATE ?= runs/sort5-grpo

.PHONY: quickstart build test fmt lint crds

build:
	$(CARGO) build --release

# Trains a small model to its reward on this machine: no GPU, no Python, no cluster.
quickstart: build
	target/release/thresh run examples/quickstart/rljob.yaml --state $(STATE) --quickstart-check

test:
	./scripts/test.sh

fmt:
	$(CARGO) fmt --all

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings

crds: build
	target/release/thresh crds --out crds

