#!/usr/bin/env bash
# A Kubernetes of the tests' own, on this machine, without a registry and without a way out:
#
#   cluster.sh up [NODES]             starts it (1 node); JUICEFS=0: with a plain folder as its volume
#   cluster.sh check                  whether this machine can hold one, and if not, why
#   cluster.sh down                   takes it away without a trace, but for the logs
#   cluster.sh status                 what runs; fails unless everything does
#   cluster.sh load TAR...            puts images onto all nodes
#   cluster.sh run COMMAND...         runs it where nodes, pods and Services answer, with KUBECONFIG, kubectl and helm
#   cluster.sh node-add               one more node, with the images of node1; node-remove takes the last one away
#   cluster.sh node-kill I            node I is lost: kubelet killed, link cut, containers go on; node-heal I brings it back
#   cluster.sh juicefs mount|kill|umount|remount
#   cluster.sh apiserver-only DIR     etcd and an API server alone, on loopback; apiserver-stop DIR ends them
#
# docs/src/cluster.md says how it works.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
for part in names process preflight pki network control-plane node juicefs remove; do . "$here/$part.sh"; done
PATH=$PATH:/usr/sbin:/sbin

# The control plane's certificates; those of a node come with the node.
certificates() {
  pki_authority
  pki_apiserver
  pki_certificate kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client clientAuth
  pki_certificate front-proxy /CN=front-proxy clientAuth
  pki_certificate admin /O=system:masters/CN=admin clientAuth
  pki_kubeconfig admin "https://$api_address:6443" "$pki/admin.kubeconfig"
  pki_kubeconfig admin https://127.0.0.1:6443 "$kubeconfig"
}

client_certificates() {
  local name
  for name in kube-controller-manager kube-scheduler kube-proxy; do
    pki_certificate $name /CN=system:$name clientAuth
    pki_kubeconfig $name "https://$api_address:6443" "$pki/$name.kubeconfig"
  done
}

# The two images that the cluster itself needs.
own_images() {
  local name folder
  for name in pause coredns; do
    folder=$(mktemp -d)
    cp "$tools/$name" "$folder/$name"
    "$here/image.sh" "thresh.local/$name:e2e" "$folder" "$state/$name.tar" "[\"/$name\"]"
    rm -r "$folder"
  done
}

daemons() {
  local i
  echo etcd kube-apiserver kube-controller-manager kube-scheduler forward-hub forward
  for ((i = 1; i <= $(node_count); i++)); do echo "containerd$i" "kubelet$i" "kube-proxy$i"; done
  [ ! -e "$run/juicefs" ] || echo juicefs
}

dead_daemons() {
  local name
  for name in $(daemons); do alive "$name" || printf '%s ' "$name"; done
}

dns_ready() { as_admin -n kube-system wait --for=condition=Available deployment/coredns --timeout=0s; }

up() { # NODES
  local nodes=$1 i dead
  [[ $nodes =~ ^[0-9]+$ ]] && [ "$nodes" -ge 1 ] && [ "$nodes" -le $nodes_max ] \
    || die "NODES is a number from 1 to $nodes_max, not '$nodes'"
  if is_up; then
    dead=$(dead_daemons)
    if [ -z "$dead" ] && api_ready > /dev/null; then
      [ "$(node_count)" = "$nodes" ] || die "up already, with $(node_count) node(s): node-add adds one, down ends it"
      say "up already, $nodes node(s), KUBECONFIG=$kubeconfig"
      return
    fi
    say "the last one is broken (${dead:+dead: }${dead:-no answer from the API server}); starting anew"
  fi
  preflight
  tools=$("$here/../tools/cache.sh" tools)
  [ "${JUICEFS:-1}" = 0 ] || "$here/../tools/cache.sh" juicefs > /dev/null
  [ "${KUEUE:-}" != 1 ] || "$here/../tools/cache.sh" kueue > /dev/null
  export PATH=$tools:$PATH
  SECONDS=0
  trap up_failed EXIT
  trap 'exit 1' INT TERM
  remove
  mkdir -p "$run" "$logs"
  rm -f "$logs"/*
  echo "$nodes" > "$run/nodes"
  echo "$tools" > "$run/tools"
  note_machine
  ss -Hltn "sport = :6443" | grep -q 127.0.0.1 && die "port 6443 of 127.0.0.1 is taken by another program"
  printf '%s\n' "nameserver $dns_address" "search default.svc.cluster.local svc.cluster.local cluster.local" "options ndots:5" \
    > "$state/hub-resolv.conf"

  # The API server takes longest, so all that does not need it is done while it starts.
  certificates
  network_hub
  network_node 1
  api_start
  client_certificates
  own_images
  for ((i = 1; i <= nodes; i++)); do
    node_certificates "$i"
    [ "$i" = 1 ] || network_node "$i"
    runtime_start "$i"
  done
  volume_start
  wait_for "the API server" 120 kube-apiserver api_ready
  controllers_start
  for ((i = 1; i <= nodes; i++)); do node_start "$i"; done
  sed "s/DNS_ADDRESS/$dns_address/" "$here/dns.yaml" | as_admin apply -f - > /dev/null
  for ((i = 1; i <= nodes; i++)); do wait_for "node$i to be Ready" 60 "kubelet$i" node_ready "$i"; done
  # Pods made before it are forbidden.
  wait_for "the default ServiceAccount" 60 kube-controller-manager as_admin get serviceaccount default
  wait_for "CoreDNS" 60 kube-controller-manager dns_ready
  forward_start
  touch "$run/up"
  trap - EXIT INT TERM
  say "up after $SECONDS s, $nodes node(s), KUBECONFIG=$kubeconfig"
}

up_failed() {
  trap - EXIT INT TERM
  remove
  echo "cluster: it did not come up and was taken away; the logs are in $logs" >&2
  exit 1
}

status() {
  local name broken=0
  is_up || { say "down"; return 1; }
  say "up, $(node_count) node(s), KUBECONFIG=$kubeconfig, logs $logs, audit $logs/audit.jsonl"
  for name in $(daemons); do
    if alive "$name"; then echo "  $name: pid $(pid_of "$name")"; else echo "  $name: dead"; broken=1; fi
  done
  as_admin get nodes || broken=1
  return $broken
}

# Mounts must be made where the nodes see them. `run` has its commands in a mount namespace of their own, and one of them may be us.
on_the_machine() {
  local daemon mounts
  daemon=$(pid_of containerd1) || return 0
  mounts=/proc/$daemon/ns/mnt
  [ "$(readlink "$mounts")" = "$(readlink /proc/self/ns/mnt)" ] || exec nsenter --mount="$mounts" -- "$here/cluster.sh" "$command" "$@"
}

# One command at a time changes the cluster.
alone() {
  need_root
  on_the_machine "$@"
  exec 8> /run/thresh-e2e.lock
  flock -n 8 || { say "another command is at work; waiting"; flock 8; }
}

running() {
  need_root
  is_up || die "no cluster is up"
  tools=$(cat "$run/tools")
  export PATH=$tools:$PATH
}

other_node() { # I: node1 carries the control plane
  [[ ${1:-} =~ ^[0-9]+$ ]] && [ "$1" -ge 2 ] && [ "$1" -le "$(node_count)" ] \
    || die "a node from 2 to $(node_count), not '${1:-}' (node1 carries the control plane)"
}

command=${1:-}
shift || true
case $command in
  up)
    if [ -n "${KUBECONFIG:-}" ] && [ "$KUBECONFIG" != "$kubeconfig" ] && [ "$KUBECONFIG" != "$pki/admin.kubeconfig" ]; then
      say "using the cluster of KUBECONFIG=$KUBECONFIG; starting none"
      exit 0
    fi
    alone "$@"
    up "${1:-1}"
    ;;
  check)
    need_root
    preflight
    "$here/../tools/cache.sh" check
    ;;
  down) alone; remove; say "down" ;;
  status) if is_up; then running; fi; status ;;
  load) running; load "$@" ;;
  run)
    running
    export KUBECONFIG=$pki/admin.kubeconfig
    in_hub_with_names "$@"
    ;;
  node-add) alone "$@"; running; node_add ;;
  node-remove) alone "$@"; running; node_remove ;;
  node-kill) alone "$@"; running; other_node "$@"; node_kill "$1" ;;
  node-heal) alone "$@"; running; other_node "$@"; node_heal "$1" ;;
  juicefs)
    alone "$@"; running
    case ${1:-} in mount | kill | umount | remount) "juicefs_$1" ;; *) die "juicefs mount, kill, umount or remount" ;; esac
    ;;
  apiserver-only) exec "$here/apiserver-only.sh" start "${1:-}" ;;
  apiserver-stop) exec "$here/apiserver-only.sh" stop "${1:-}" ;;
  *) sed -n '2,/^set/p' "$0" | grep '^#' | cut -c3- >&2; exit 2 ;;
esac
