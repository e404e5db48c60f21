#!/usr/bin/env bash
# apiserver-only.sh start|stop DIR: etcd and kube-apiserver alone, on loopback, for tests that need no nodes and no controllers.
#
# `start` prints the path of a kubeconfig. Each DIR is a server of its own; any number may run at once, and none needs root. An earlier
# server of the same DIR is kept if it lives, replaced if it died. Nothing fills in ServiceAccounts, runs pods or collects garbage.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
command=${1:-} dir=${2:-}
[ -n "$dir" ] || { sed -n 2p "$0" | cut -c3- >&2; exit 2; }
die() { echo "apiserver-only: $*" >&2; exit 1; }
[[ $dir != *[[:space:]]* ]] || die "a folder's name with spaces is not supported: $dir"
mkdir -p "$dir"
dir=$(readlink -f "$dir")
run=$dir logs=$dir pki=$dir/pki
. "$here/process.sh"
. "$here/pki.sh"
. "$here/control-plane.sh"

stop() {
  end kube-apiserver
  end etcd
  rm -rf "$dir"/{etcd,pki,kubeconfig,server,audit-policy.yaml}
}

listens() { [ -n "$(ss -Hltn "sport = :$1")" ]; }

free_port() {
  local port
  while :; do
    port=$((20000 + RANDOM % 12000))   # below the range that the kernel hands out by itself
    listens "$port" || { echo "$port"; return; }
  done
}

start_server() {
  local server client peer port
  if alive etcd && alive kube-apiserver && api_ready "$(cat "$dir/server")" > /dev/null; then return; fi
  stop
  rm -f "$dir"/{etcd,kube-apiserver}.log "$dir/audit.jsonl"
  tools=$("$here/../tools/cache.sh" tools)
  export PATH=$tools:$PATH
  pki_authority
  pki_apiserver
  pki_certificate admin /O=system:masters/CN=admin clientAuth
  audit_policy "$dir/audit-policy.yaml"
  # Ports are free until somebody takes them: servers that start at the same time choose one after the other.
  exec 9> "${TMPDIR:-/tmp}/thresh-e2e-ports-$(id -u).lock"
  flock 9
  client=http://127.0.0.1:$(free_port) peer=http://127.0.0.1:$(free_port) port=$(free_port)
  server=https://127.0.0.1:$port
  echo "$server" > "$dir/server"
  # shellcheck disable=SC2046  # the argument functions print words to be split
  start etcd etcd $(etcd_arguments "$dir/etcd" "$client" "$peer")
  # shellcheck disable=SC2046
  start kube-apiserver kube-apiserver $(apiserver_arguments "$client" 127.0.0.1 "$port" "$dir/audit-policy.yaml" "$dir/audit.jsonl") \
    --advertise-address=127.0.0.1 --authorization-mode=RBAC --disable-admission-plugins=ServiceAccount --endpoint-reconciler-type=none
  wait_for "the API server's port" 60 kube-apiserver listens "$port"
  flock -u 9
  wait_for "the API server" 120 kube-apiserver api_ready "$server"
  pki_kubeconfig admin "$server" "$dir/kubeconfig"
}

case $command in
  start)
    trap '[ $? = 0 ] || stop' EXIT
    trap 'exit 1' INT TERM
    start_server
    echo "$dir/kubeconfig"
    ;;
  stop) stop ;;
  *) die "start or stop, not '$command'" ;;
esac
