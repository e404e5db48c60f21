#!/usr/bin/env bash
# Everything CI runs: all tests, some of which start the real processes. One profile, so nothing is built twice.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
# The binaries first: tests of the whole loop start them as processes.
cargo build --release --workspace --exclude bench --bins
# A test that hangs ends its own program, by name, and not the whole run.
cargo test --release --workspace --exclude bench --no-fail-fast \
	--config 'target."cfg(all())".runner = ["timeout", "--verbose", "--kill-after=5", "1500"]' -- --test-threads=2
