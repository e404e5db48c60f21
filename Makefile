# The commands of this repository. `make quickstart` and `make test` set up everything they need on a bare machine with Rust.
CARGO ?= cargo
STATE ?= runs/sort5-grpo
KILLS ?= 24
SEED := $(or $(SEED),$(shell date +%s))
NODES ?= 1

.PHONY: quickstart build kubectl test test-oracle fmt lint crds charts test-charts chaos bench bench-straw bench-core \
  bench-rollout bench-operator e2e e2e-kueue quickstart-cluster cluster cluster-down images fuzz

build:
	$(CARGO) build --release

# `kubectl thresh`: put target/release/kubectl-thresh into PATH. Apart from the rest, since only it needs a Kubernetes client.
kubectl:
	$(CARGO) build --release -p kubectl-thresh

# Trains a small model to its reward on this machine: no GPU, no Python, no cluster.
quickstart: build
	target/release/thresh run examples/quickstart/rljob.yaml --state $(STATE) --quickstart-check

test:
	./scripts/test.sh

# Compares us with PyTorch and transformers, which it installs (5.7 GB) into target/oracle.
test-oracle:
	./scripts/oracle.sh

# Fuzzes the decoders of straw, FUZZ_SECONDS (60) each. Needs a nightly compiler and cargo-fuzz, and says so.
fuzz:
	./scripts/fuzz.sh

fmt:
	$(CARGO) fmt --all

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings
	$(CARGO) clippy --release -p cli --test oracle -- -D warnings

# Kills parts of a run KILLS times while it trains, and fails if anything was lost or done twice. 1000 take most of an hour.
chaos: build
	target/release/thresh chaos examples/chaos/rljob.yaml --kills $(KILLS) --seed $(SEED) --state runs/chaos-$(SEED)

# Measures everything beside its peers: the raw file system, straw-queue, the cores' peak, and PyTorch, which it installs (5.3 GB) into
# target/bench/venv. Ten minutes on a quiet machine. With PAGE=docs/src/speed.md it writes that page, too.
TORCH ?= torch==2.15.0
bench: bench-straw bench-core bench-rollout
	target/release/thresh-bench page $(if $(PAGE),--write $(PAGE))

# Beside straw-queue, which it installs into target/bench/straw-venv, and on the local disk and a JuiceFS mount of its own.
STRAW_PEER ?= straw-queue==0.1.6
bench-straw: target/bench/build target/bench/straw-peer
	bench/juicefs.sh target/release/thresh-bench straw

bench-core: target/bench/build target/bench/torch
	target/release/thresh-bench core

bench-rollout: target/bench/build
	target/release/thresh-bench rollout

# 1,000 runs with 10,000 pods on nodes that only pretend, under the real controllers.
bench-operator:
	./scripts/on-cluster.sh target/release/thresh-e2e --scale $(or $(RUNS),1000)

.PHONY: target/bench/build
target/bench/build:
	$(CARGO) build --release --workspace --bins

# Without its dependencies, of which it needs NumPy alone for records of bytes.
target/bench/straw-peer:
	mkdir -p target/bench
	{ python3 -m venv target/bench/straw-venv && target/bench/straw-venv/bin/pip install --quiet --disable-pip-version-check numpy \
	    && target/bench/straw-venv/bin/pip install --quiet --disable-pip-version-check --no-deps $(STRAW_PEER) && touch $@; } \
	  || { rm -rf target/bench/straw-venv; echo "$(STRAW_PEER) cannot be installed (the reason is above): its figures are left out"; }

target/bench/torch:
	mkdir -p target/bench
	{ python3 -m venv target/bench/venv && target/bench/venv/bin/pip install --quiet $(TORCH) && touch $@; } \
	  || { rm -rf target/bench/venv; echo "$(TORCH) cannot be installed (the reason is above): its figures are left out"; }

crds: build
	target/release/thresh crds --out crds

# A real Kubernetes on this machine, for the end-to-end tests: docs/src/cluster.md. With KUBECONFIG set, that cluster is used instead.
cluster:
	$(if $(KUBECONFIG),,e2e/cluster/install.sh)
	e2e/cluster/cluster.sh up $(NODES)

cluster-down:
	e2e/cluster/cluster.sh down

# The tests on a real cluster; E2E="name ..." picks some. With AGAIN=1 what fails is tried once more, alone, and told.
e2e:
	./scripts/on-cluster.sh target/release/thresh-e2e $(if $(AGAIN),--again) $(E2E)

# Those of queues, with the real Kueue (built once, in four minutes).
e2e-kueue:
	KUEUE=1 ./scripts/on-cluster.sh target/release/thresh-e2e a_queued_run

# The quickstart's run, applied to a cluster: the same closing line.
quickstart-cluster:
	./scripts/on-cluster.sh e2e/quickstart.sh

# The operator's, the rollout's and the trainer's image out of target/release, loaded into our cluster if it is up.
images:
	$(CARGO) build --release --workspace --exclude bench --bins
	e2e/images/build.sh
	e2e/images/check.sh

# What in the charts comes from elsewhere: the definitions from crds/, the table of values in the docs from values.yaml.
charts:
	./charts/sync-crds.sh
	./charts/values-table.sh

# Needs helm and jq; with KUBECONFIG it asks that API server, too.
test-charts:
	./charts/tests/run.sh
