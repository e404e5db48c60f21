#!/usr/bin/env bash
# Fuzzes straw's decoders, FUZZ_SECONDS each; FUZZ="name ..." picks some. What it finds is kept in fuzz/corpus, and an input that fails in
# fuzz/artifacts: put it into crates/straw/tests/corpus/NAME, where the tests replay it.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-60}
nightly=${NIGHTLY:-nightly}

missing=()
cargo "+$nightly" --version > /dev/null 2>&1 || missing+=("rustup toolchain install $nightly --profile minimal")
cargo fuzz --version > /dev/null 2>&1 || missing+=("cargo install cargo-fuzz --locked")
if [ ${#missing[@]} -gt 0 ]; then
	echo "fuzzing needs a nightly compiler and cargo-fuzz. Install what is missing, and try again:" >&2
	printf '  %s\n' "${missing[@]}" >&2
	exit 1
fi

cargo "+$nightly" fuzz build
failed=()
for target in ${FUZZ:-$(cargo "+$nightly" fuzz list)}; do
	echo "== $target, $seconds s"
	mkdir -p "fuzz/corpus/$target"
	# A GiB is far more than any of them takes; an input that takes longer than ten seconds is a fault, too.
	cargo "+$nightly" fuzz run "$target" "fuzz/corpus/$target" "crates/straw/tests/corpus/$target" -- \
		-max_total_time="$seconds" -max_len=8192 -rss_limit_mb=1024 -timeout=10 -print_final_stats=1 || failed+=("$target")
done
if [ ${#failed[@]} -gt 0 ]; then
	echo "failed: ${failed[*]}" >&2
	exit 1
fi
