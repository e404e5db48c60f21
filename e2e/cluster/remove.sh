# Takes everything away that `up` made, whatever state it is in. Sourced by cluster.sh.

# kubelet writes these for the whole machine.
sysctls=(vm.overcommit_memory kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys kernel.keys.root_maxbytes)
# Folders outside ours that `ip netns`, containerd, its CNI library and kubelet make, whatever they are told.
strays=(/run/netns /run/containerd /opt/containerd /var/lib/cni /var/lib/kubelet /var/log/containers)

# Notes what the machine is like before we change it. A note that is there already is from before a crash, and is the true one.
note_machine() {
  local name
  [ ! -e "$state/before" ] || return 0
  {
    echo "boot $(cat /proc/sys/kernel/random/boot_id)"
    for name in "${sysctls[@]}"; do echo "sysctl $name=$(sysctl -n "$name")"; done
    for name in "${strays[@]}"; do [ -e "$name" ] || echo "absent $name"; done
  } > "$state/before.new"
  mv "$state/before.new" "$state/before"
}

restore_machine() {
  local what value
  find /var/log/containers -type l -lname "$state/*" -delete 2> /dev/null
  rm -f /var/lib/cni/results/thresh-e2e-*
  # A reboot has put the sysctls back already.
  grep -qsx "boot $(cat /proc/sys/kernel/random/boot_id)" "$state/before" && sed -n 's/^sysctl //p' "$state/before" | sysctl -qp -
  while read -r what value; do
    [ "$what" = absent ] || continue
    # `ip netns add` made its folder a mount; others may have put theirs into it since.
    if [ "$value" = /run/netns ]; then
      [ -z "$(ls -A /run/netns 2> /dev/null)" ] || continue
      while mountpoint -q /run/netns; do umount /run/netns || break; done
    fi
    rm -rf --one-file-system "$value"
  done < <(cat "$state/before" 2> /dev/null)
}

# Ends what runs in a node's cgroup: the containers.
empty_cgroup() { # NODE-NAME
  local tries pids
  for tries in $(seq 50); do
    pids=$(find /sys/fs/cgroup/{memory/,}"$1" -name cgroup.procs -exec cat {} + 2> /dev/null)
    [ -n "$pids" ] || return 0
    # shellcheck disable=SC2086  # pids
    kill -9 $pids 2> /dev/null
    sleep 0.05
  done
}

our_namespaces() { find /run/netns -maxdepth 1 -name 'thresh-*' -printf '%f\n' 2> /dev/null; }

our_mounts() { # the deepest and the latest first
  awk -v state="$state/" -v run="$run/" 'index($2, state) == 1 || index($2, run) == 1 {print NR, $2}' /proc/mounts \
    | sort -rn | cut -d' ' -f2-
}

# What a node leaves behind once kubelet and kube-proxy have ended.
node_erase() { # I
  local i=$1 pid name file folder other
  set +e
  empty_cgroup "thresh-node$i"
  end "containerd$i"
  for file in "$run/containerd$i"/io.containerd.runtime.v2.task/*/*/address; do
    [ -f "$file" ] && name=$(cat "$file") && rm -f "${name#unix://}"
  done
  for pid in $(pgrep -f "^[^ ]*containerd-shim-runc-v2 .*-address $run/containerd$i\.sock"); do kill -9 "$pid"; done
  for pid in $(ip netns pids "thresh-node$i"); do kill -9 "$pid" 2> /dev/null; done
  for name in $(our_mounts | grep -E "^($state/node$i|$run/(containerd|runc|ipam)$i)(/|$)"); do umount -l "$name"; done
  for folder in /sys/fs/cgroup/{*/,}"thresh-node$i"; do [ -d "$folder" ] && find "$folder" -depth -type d -exec rmdir {} \; 2> /dev/null; done
  ip netns del "thresh-node$i"
  in_hub ip link del "node$i" 2> /dev/null   # gone with its other end, sooner or later
  in_hub ip route del "$(pod_range "$i")" 2> /dev/null
  for ((other = 1; other < i; other++)); do in_node "$other" ip route del "$(pod_range "$i")" 2> /dev/null; done
  rm -rf --one-file-system "$state/node$i" "$run/containerd$i" "$run/containerd$i.sock"* "$run/runc$i" "$run/ipam$i"
  set -e
}

remove() {
  local name pid file folder
  set +e
  for name in forward forward-hub; do end $name; done
  for file in "$run"/kubelet*.pid "$run"/kube-proxy*.pid; do end "$(basename "$file" .pid)"; done
  for name in kube-scheduler kube-controller-manager kube-apiserver etcd; do end $name; done
  for folder in /sys/fs/cgroup/{memory/,}thresh-node*; do [ -d "$folder" ] && empty_cgroup "$(basename "$folder")"; done
  for file in "$run"/containerd*.pid; do end "$(basename "$file" .pid)"; done
  # Shims keep their sockets in a folder that other users of containerd share.
  for file in "$run"/containerd*/io.containerd.runtime.v2.task/*/*/address; do
    [ -f "$file" ] && name=$(cat "$file") && rm -f "${name#unix://}"
  done
  for pid in $(pgrep -f "^[^ ]*containerd-shim-runc-v2 .*-address $run/containerd"); do kill -9 "$pid"; done
  juicefs_end
  # Whatever else still runs in our namespaces, such as connections of the forwarder or a command of `run`.
  for name in $(our_namespaces); do
    for pid in $(ip netns pids "$name"); do kill -9 "$pid" 2> /dev/null; done
  done
  for name in $(our_mounts); do umount -l "$name"; done
  for folder in /sys/fs/cgroup/{*/,}thresh-node*; do [ -d "$folder" ] && find "$folder" -depth -type d -exec rmdir {} \; 2> /dev/null; done
  for name in $(our_namespaces); do ip netns del "$name"; done
  restore_machine
  rm -rf "$run"
  find "$state" -mindepth 1 -maxdepth 1 ! -name log -exec rm -rf --one-file-system {} + 2> /dev/null
  set -e
}
