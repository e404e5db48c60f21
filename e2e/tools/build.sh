#!/usr/bin/env bash
# build.sh OUT: compiles the cluster's programs from the modules that go.mod pins, as static binaries. Called by cache.sh.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
out=$1
export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS=-mod=readonly

# Without these every Kubernetes program says it is v0.0.0, and kubectl and helm then refuse things.
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=$(cut -d. -f2 <<< "$version")
stamp="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  stamp+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$minor"
done

programs=(
  "kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver"
  "kube-controller-manager k8s.io/kubernetes/cmd/kube-controller-manager"
  "kube-scheduler k8s.io/kubernetes/cmd/kube-scheduler"
  "kube-proxy k8s.io/kubernetes/cmd/kube-proxy"
  "kubelet k8s.io/kubernetes/cmd/kubelet"
  "kubectl k8s.io/kubernetes/cmd/kubectl"
  "etcd go.etcd.io/etcd/server/v3"
  "helm helm.sh/helm/v4/cmd/helm"
  "kwok sigs.k8s.io/kwok/cmd/kwok"
  "coredns ./dns"
  "pause ./pause"
)
at=0
for program in "${programs[@]}"; do
  read -r name package <<< "$program"
  at=$((at + 1)) from=$SECONDS
  printf 'tools: %2d/%d %-24s' "$at" "${#programs[@]}" "$name" >&2
  flags="-s -w"
  [[ $package != k8s.io/kubernetes/* ]] || flags=$stamp
  go build -trimpath -ldflags "$flags" -o "$out/$name" "$package"
  printf ' %4d s, %d s in all\n' "$((SECONDS - from))" "$SECONDS" >&2
done
