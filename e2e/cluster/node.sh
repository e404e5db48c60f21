# One node: containerd, kubelet and kube-proxy in a namespace and a cgroup of their own. Sourced by cluster.sh.

node_files() { # I
  local i=$1 folder=$state/node$1
  mkdir -p "$folder"/{cni,kubelet,podlogs}
  # Mounts below kubelet's root must reach the pods (projected volumes, HostToContainer); the machine's / may be private.
  share "$folder/kubelet"

  cat > "$folder/containerd.toml" << END
version = 2
root = "$folder/containerd"
state = "$run/containerd$i"
[grpc]
  address = "$run/containerd$i.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$folder/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "thresh.local/pause:e2e"
  disable_tcp_service = true
  # Without CAP_SYS_RESOURCE runc may not write a negative score, and every pod would fail.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$folder/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
      Root = "$run/runc$i"
END

  cat > "$folder/cni/10-bridge.conflist" << END
{"cniVersion": "1.0.0", "name": "thresh-e2e", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$run/ipam$i",
            "ranges": [[{"subnet": "$(pod_range "$i")"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
END

  : > "$folder/resolv.conf"   # pods with dnsPolicy Default: no name server at all, rather than the machine's
  # No registry can give an image back, so none is ever collected. Restarts come after a second, not after ten and more, and tests that
  # count on it say so. failCgroupV1 lets kubelet run where the machine has the older cgroups.
  cat > "$folder/kubelet.yaml" << END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $(node_address "$i")
healthzBindAddress: 127.0.0.1
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $pki/node$i-server.crt
tlsPrivateKeyFile: $pki/node$i-server.key
containerRuntimeEndpoint: unix://$run/containerd$i.sock
cgroupDriver: cgroupfs
cgroupRoot: /thresh-node$i
failCgroupV1: false
failSwapOn: false
clusterDomain: cluster.local
clusterDNS: [$dns_address]
resolvConf: $folder/resolv.conf
podLogsDir: $folder/podlogs
volumePluginDir: $folder/kubelet/volumeplugins
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
nodeStatusUpdateFrequency: 4s
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
eventRecordQPS: 0
kubeAPIQPS: 500
kubeAPIBurst: 1000
END

  # Outside the machine's first namespace the conntrack sysctls are not kube-proxy's to write: zero leaves them alone.
  cat > "$folder/kube-proxy.yaml" << END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: $pki/kube-proxy.kubeconfig}
hostnameOverride: node$i
bindAddress: $(node_address "$i")
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
clusterCIDR: 10.244.0.0/16
mode: iptables
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
END
}

node_certificates() { # I
  pki_certificate "node$1" "/O=system:nodes/CN=system:node:node$1" clientAuth
  pki_certificate "node$1-server" "/CN=node$1" serverAuth "DNS:node$1,IP:$(node_address "$1")"
  pki_kubeconfig "node$1" "https://$api_address:6443" "$pki/node$1.kubeconfig"
}

# kubelet does not make its cgroupRoot.
node_cgroups() { # I
  local root file
  for root in $(cgroup_roots); do mkdir -p "$root/thresh-node$1"; done
  if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    echo "+cpu +cpuset +memory +pids +io" > /sys/fs/cgroup/cgroup.subtree_control
  fi
  if [ -f /sys/fs/cgroup/cpuset/cpuset.cpus ]; then   # a new group of v1's cpuset holds no process until it is filled
    for file in cpuset.cpus cpuset.mems; do cat /sys/fs/cgroup/cpuset/$file > "/sys/fs/cgroup/cpuset/thresh-node$1/$file"; done
  fi
}

kubelet_start() { # I
  start_in "node$1" "kubelet$1" kubelet --config="$state/node$1/kubelet.yaml" --kubeconfig="$pki/node$1.kubeconfig" \
    --hostname-override="node$1" --node-ip="$(node_address "$1")" --root-dir="$state/node$1/kubelet" --cert-dir="$pki"
}

# What of a node needs no API server yet: containerd, with the images of the cluster itself.
runtime_start() { # I
  node_files "$1"
  node_cgroups "$1"
  start_in "node$1" "containerd$1" containerd -c "$state/node$1/containerd.toml"
  wait_for "containerd of node$1" 30 "containerd$1" ctr -a "$run/containerd$1.sock" version
  load_into "$1" "$state/pause.tar"
  [ "$1" != 1 ] || load_into 1 "$state/coredns.tar"   # which is bound to node1
}

node_start() { # I
  kubelet_start "$1"
  start_in "node$1" "kube-proxy$1" kube-proxy --config="$state/node$1/kube-proxy.yaml"
}

node_ready() { as_admin wait --for=condition=Ready "node/node$1" --timeout=0s; }

# Puts images onto node I.
load_into() { # I TAR...
  local i=$1 tar; shift
  for tar in "$@"; do ctr -a "$run/containerd$i.sock" -n k8s.io images import "$tar" > /dev/null || return 1; done
}

# Puts images onto all nodes at once.
load() { # TAR...
  local i jobs=() failed=0
  for ((i = 1; i <= $(node_count); i++)); do load_into "$i" "$@" & jobs+=($!); done
  for i in "${jobs[@]}"; do wait "$i" || failed=1; done
  [ $failed = 0 ] || die "an image could not be loaded (the reason is above)"
}

# A node is lost: nobody reports for it, and its link is cut. Its containers go on.
node_kill() { # I
  end "kubelet$1"
  in_hub ip link set "node$1" down
}

node_heal() { # I
  in_hub ip link set "node$1" up
  alive "kubelet$1" || kubelet_start "$1"
  wait_for "node$1 to be Ready" 60 "kubelet$1" node_ready "$1"
}

# Puts the tests' images onto node I, as they are on node1.
images_from_node1() { # I
  local names tar=$state/node$1/images.tar
  read -ra names <<< "$(ctr -a "$run/containerd1.sock" -n k8s.io images ls -q | grep '^thresh\.local/' | tr '\n' ' ')"
  ctr -a "$run/containerd1.sock" -n k8s.io images export "$tar" "${names[@]}"
  load_into "$1" "$tar"
  rm "$tar"
}

node_add() {
  local i=$(($(node_count) + 1))
  [ $i -le $nodes_max ] || die "there are $nodes_max nodes already"
  echo $i > "$run/nodes"
  node_certificates $i
  network_node $i
  runtime_start $i
  images_from_node1 $i
  node_start $i
  wait_for "node$i to be Ready" 60 "kubelet$i" node_ready $i
}

# The last node leaves for good, with all that runs on it.
node_remove() {
  local i; i=$(node_count)
  [ "$i" -gt 1 ] || die "node1 carries the control plane"
  end "kubelet$i"
  as_admin delete node "node$i" --ignore-not-found > /dev/null
  end "kube-proxy$i"
  node_erase "$i"
  echo $((i - 1)) > "$run/nodes"
}
