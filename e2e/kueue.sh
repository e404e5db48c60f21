#!/usr/bin/env bash
# kueue.sh up|down: the real Kueue in our cluster, from its Go module and the chart inside it. Called within the cluster's network.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
release=kueue namespace=kueue-system

up() {
  local kueue work
  kueue=$("$here/tools/cache.sh" kueue)
  work=$(mktemp -d); trap 'rm -rf "$work"' RETURN
  mkdir -p "$work/rootfs/tmp"
  cp "$kueue/manager" "$work/rootfs/manager"
  "$here/cluster/image.sh" thresh.local/kueue:e2e "$work/rootfs" "$work/kueue.tar" '["/manager"]' 65532:65532
  "$here/cluster/cluster.sh" load "$work/kueue.tar" > /dev/null
  helm upgrade --install $release "$kueue/chart" --namespace $namespace --create-namespace \
    --set controllerManager.manager.image.repository=thresh.local/kueue,controllerManager.manager.image.tag=e2e \
    --set controllerManager.manager.image.pullPolicy=Never,controllerManager.manager.resources.requests.cpu=10m \
    --set controllerManager.manager.podSecurityContext.runAsUser=65532 \
    --wait --timeout 180s > /dev/null
  # Its pod is ready before every node's rules lead to it, and until then each Deployment and Job is refused.
  local until=$((SECONDS + 60))
  until kubectl create deployment asked --image=none --dry-run=server > /dev/null 2> "$work/refused"; do
    ((SECONDS < until)) || { echo "kueue: its webhooks do not answer after 60 s: $(cat "$work/refused")" >&2; return 1; }
    sleep 0.5
  done
  echo "kueue: $(helm list --namespace $namespace --output json | jq -r '.[0].chart') is there"
}

# Its webhooks judge every Job of the cluster: none may outlive it.
down() {
  # What it holds with its finalizers goes while it is there to let go.
  kubectl delete clusterqueues.kueue.x-k8s.io,resourceflavors.kueue.x-k8s.io --all --timeout=60s > /dev/null
  helm uninstall $release --namespace $namespace --wait --timeout 120s > /dev/null
}

case ${1:-} in up | down) "$1" ;; *) echo "kueue.sh up|down" >&2; exit 2 ;; esac
