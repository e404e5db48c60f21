#!/usr/bin/env bash
# on-cluster.sh COMMAND...: runs it where a real cluster answers (docs/src/cluster.md). With KUBECONFIG set that is the cluster, which
# must have our images; else one is started on this machine, with our images on it, and taken away at the end if we started it. With
# KUEUE=1 ours has Kueue in it meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
cargo build --release --workspace --exclude bench --bins
if [ -n "${KUBECONFIG:-}" ]; then
  exec "$@"
fi
cluster=e2e/cluster/cluster.sh
after=:
trap '$after' EXIT
e2e/cluster/install.sh
[ -e /run/thresh-e2e/up ] || after="$cluster down"
$cluster up "${NODES:-2}"
e2e/images/build.sh
e2e/images/check.sh
if [ "${KUEUE:-}" = 1 ]; then
  $cluster run e2e/kueue.sh up
  [ "$after" != : ] || after="$cluster run e2e/kueue.sh down"
fi
$cluster run "$@"
