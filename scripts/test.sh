#!/usr/bin/env bash
# Everything CI runs: all tests, some of which start the real processes. One profile, so nothing is built twice.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
# The binaries first: tests of the whole loop start them as processes.
cargo build --release --workspace --exclude bench --bins
cargo test --release --workspace --exclude bench --no-fail-fast -- --test-threads=2
