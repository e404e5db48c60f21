#!/usr/bin/env bash
# Everything CI runs: formatting, lints, all tests (some start the real processes). One profile, so nothing is built twice.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
cargo fmt --all --check
cargo clippy --release --workspace --all-targets --quiet -- -D warnings
# The binaries first: tests of the whole loop start them as processes.
cargo build --release --workspace --bins
cargo test --release --workspace -- --test-threads=2
