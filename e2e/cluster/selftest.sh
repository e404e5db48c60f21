#!/usr/bin/env bash
# selftest.sh: what this folder promises, tried on a real cluster. It ends with the cluster down. It needs no built binary of
# ours: its one image holds a shell and a few programs of this machine.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
. "$here/names.sh"
cluster() { "$here/cluster.sh" "$@"; }
! is_up || die "a cluster is up, and this would take it away: cluster.sh down first"
unset KUBECONFIG
work=$(mktemp -d)
trap 'code=$?; cluster down > /dev/null; rm -rf "$work"; [ $code = 0 ] || echo "selftest: FAILED in: ${rule:-set-up}" >&2; exit $code' EXIT
rule() { rule=$1; echo "selftest: $1"; }
fail() { echo "selftest: $*" >&2; exit 1; }
soon() { # SECONDS COMMAND...
  local until=$((SECONDS + $1)); shift
  until "$@" > /dev/null 2>&1; do [ $SECONDS -lt $until ] || fail "not in time: $*"; sleep 0.2; done
}
kubectl() { cluster run kubectl "$@"; }
# What the machine shows of a cluster: all of it must be as before, in the end.
machine() {
  find /run/netns /run/thresh-e2e -mindepth 1 2> /dev/null || true
  ip -br link | cut -d' ' -f1
  iptables-save | grep -v '^[#:]' || true
  ip route
  cut -d' ' -f1-2 /proc/mounts | sort
  find /sys/fs/cgroup -type d -name 'thresh*'
  sysctl vm.overcommit_memory kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys kernel.keys.root_maxbytes
  pgrep -fa "$state|$run" | grep -v selftest || true
  find "$state" -mindepth 1 -maxdepth 1 ! -name log 2> /dev/null || true
}
machine > "$work/before"

rule "up starts two nodes, and says so when they are up already"
cluster up 2
[[ $(cluster up 2) == *"up already"* ]] || fail "the second 'up' started something"
! cluster up 1 2> /dev/null || fail "'up 1' was content with two nodes"
cluster status > /dev/null

rule "an image loaded once runs on both nodes, as the user it names"
"$here/../images/rootfs.sh" /bin/{dash,cat,sleep} /usr/bin/{id,curl,socat} "$work/probe"
ln -s usr/local/bin "$work/probe/bin"
ln -s dash "$work/probe/bin/sh"
"$here/image.sh" thresh.local/probe:e2e "$work/probe" "$work/probe.tar" '["/bin/sh", "-c"]' 65532:65532
cluster load "$work/probe.tar"
kubectl apply -f - << 'END' > /dev/null
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: probe}
spec:
  selector: {matchLabels: {app: probe}}
  template:
    metadata: {labels: {app: probe}}
    spec:
      terminationGracePeriodSeconds: 1
      volumes: [{name: volume, hostPath: {path: /var/lib/thresh-e2e/volume, type: Directory}}]
      containers:
      - name: probe
        image: thresh.local/probe:e2e
        args:
        - id -u > /volume/$NODE; socat TCP-LISTEN:8080,fork,reuseaddr SYSTEM:'echo HTTP/1.0 200 OK; echo; echo $NODE'
        env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        volumeMounts: [{name: volume, mountPath: /volume, mountPropagation: HostToContainer}]
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: probe}
spec: {selector: {app: probe}, ports: [{port: 80, targetPort: 8080}]}
END
soon 60 kubectl rollout status daemonset/probe --timeout=1s
[ "$(cat "$volume/node1" "$volume/node2")" = $'65532\n65532' ] || fail "the pods do not run as 65532, or do not share the volume"

rule "a Service answers by name from the hub and from a pod, and reaches the pods of both nodes"
answers() { for _ in $(seq 20); do "$@" 2> /dev/null | sed -n 1p; done | sort -u | tr '\n' ' '; }
[ "$(answers cluster run curl -sS -m 3 http://probe.default)" = "node1 node2 " ] || fail "the hub does not reach both"
[ "$(answers kubectl exec daemonset/probe -- curl -sS -m 3 http://probe.default.svc.cluster.local)" = "node1 node2 " ] \
  || fail "a pod does not reach both"

rule "the machine itself reaches the API server, and has no route of the cluster's"
"$(cat "$run/tools")/kubectl" --kubeconfig "$kubeconfig" get nodes > /dev/null
! ip route | grep -E '10[.](77|96|244)[.]' || fail "cluster ranges are routed outside the namespaces"

rule "the death of JuiceFS is seen in running pods, and its return, too"
volume_says() { [[ $(kubectl exec daemonset/probe -- cat /volume/node1 2>&1) == *"$1"* ]]; }
soon 5 volume_says 65532
cluster juicefs kill;    soon 5 volume_says "Transport endpoint is not connected"
cluster juicefs remount; soon 5 volume_says 65532
cluster juicefs umount;  soon 5 volume_says "No such file"
cluster juicefs mount;   soon 5 volume_says 65532
cluster juicefs remount; soon 5 volume_says 65532

rule "a node that joins a running cluster carries pods"
cluster node-add
cluster load "$work/probe.tar"
soon 60 test -s "$volume/node3"

rule "a lost node is noticed, and comes back"
cluster node-kill 3
kubectl wait --for=condition=Ready=Unknown node/node3 --timeout=120s > /dev/null
! cluster status > /dev/null || fail "status did not see the dead kubelet"
cluster node-heal 3
cluster status > /dev/null
! cluster node-kill 1 2> /dev/null || fail "node1, with the control plane, was killed"

rule "writes are in the audit log, by user"
jq -r 'select(.verb == "patch" or .verb == "create") | .user.username + " " + .objectRef.resource' "$logs/audit.jsonl" > "$work/writes"
grep -qx "admin daemonsets" "$work/writes"

rule "after a crash up starts anew"
kill -9 "$(cut -d' ' -f1 "$run/kube-apiserver.pid")"
[[ $(cluster up 1) == *"starting anew"*"up after"* ]] || fail "'up' did not start anew"
[ "$(kubectl get nodes -o name)" = node/node1 ] || fail "the old nodes are still there"

rule "down leaves nothing, at whatever moment it came"
cluster down > /dev/null
timeout -s TERM 3 "$here/cluster.sh" up 2 > /dev/null 2>&1 || true
cluster down > /dev/null
machine > "$work/after"
diff -u "$work/before" "$work/after" || fail "something was left"

rule "API servers alone run side by side"
for i in 1 2; do cluster apiserver-only "$work/api$i" > "$work/kubeconfig$i" & jobs[i]=$!; done
for i in 1 2; do wait "${jobs[i]}"; done
tools=$("$here/../tools/cache.sh" tools)
"$tools/kubectl" --kubeconfig "$(cat "$work/kubeconfig1")" create namespace only-here > /dev/null
! "$tools/kubectl" --kubeconfig "$(cat "$work/kubeconfig2")" get namespace only-here 2> /dev/null || fail "the two are one"
for i in 1 2; do cluster apiserver-stop "$work/api$i"; done
! pgrep -f "$work/api" || fail "an API server outlived its stop"
echo "selftest: all is well after $SECONDS s"
