# Namespaces: a hub with one bridge, and a node each. None has a way out: an address that is not there has no route at all.
# Sourced by cluster.sh.

# nsenter, never `ip netns exec`: that one remounts /sys and hides the cgroups.
network_hub() {
  ip netns add thresh-hub
  in_hub ip link set lo up
  in_hub ip link add br0 type bridge
  in_hub ip addr add $hub_address/16 dev br0
  in_hub ip link set br0 up
  in_hub ip route add $service_range via $api_address   # Services answer through node1's kube-proxy
}

# Adds node I beside the nodes 1 to I-1.
network_node() { # I
  local i=$1 other
  ip netns add "thresh-node$i"
  ip link add eth0 netns "thresh-node$i" type veth peer name "node$i" netns thresh-hub
  in_hub ip link set "node$i" master br0 up
  in_hub ip route add "$(pod_range "$i")" via "$(node_address "$i")"
  in_node "$i" ip link set lo up
  in_node "$i" ip addr add "$(node_address "$i")/16" dev eth0
  in_node "$i" ip link set eth0 up
  # Without some default route connect() to a Service's address fails before kube-proxy's rule can rewrite it.
  in_node "$i" ip route add default via $hub_address
  in_node "$i" sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
  for ((other = 1; other < i; other++)); do
    in_node "$i" ip route add "$(pod_range "$other")" via "$(node_address "$other")"
    in_node "$other" ip route add "$(pod_range "$i")" via "$(node_address "$i")"
  done
}

# The API for programs outside the namespaces. A Unix socket joins the two sides, as paths know no network namespaces.
forward_start() {
  start_in hub forward-hub socat "UNIX-LISTEN:$run/api.sock,fork,backlog=128,mode=600" "TCP:$api_address:6443,nodelay"
  wait_for "the forwarder's socket" 10 forward-hub test -S "$run/api.sock"
  start forward socat "TCP-LISTEN:6443,bind=127.0.0.1,reuseaddr,fork,backlog=128,nodelay" "UNIX:$run/api.sock"
}

# Runs COMMAND in the hub, where nodes, pods and Services answer by address and by name. Mounts of the machine go on arriving in it.
in_hub_with_names() {
  exec nsenter --net=/run/netns/thresh-hub -- unshare --mount --propagation slave -- \
    sh -c 'mount --bind "$0" /etc/resolv.conf && exec "$@"' "$state/hub-resolv.conf" "$@"
}
