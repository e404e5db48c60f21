# What the machine must allow, said plainly before anything is changed. Sourced by cluster.sh.

# v1 has a tree for each controller, v2 one for all. Prints the folders in which a node's group is made.
cgroup_roots() {
  if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    echo /sys/fs/cgroup
  else
    awk '$3 == "cgroup" {print $2}' /proc/mounts
  fi
}

need_root() {
  [ "$(id -u)" = 0 ] || die "namespaces, mounts and cgroups need root: run this as root, or set KUBECONFIG to a cluster of yours"
}

preflight() {
  local program missing=() root
  for program in containerd runc iptables conntrack ethtool socat jq openssl curl ip nsenter flock fusermount3 pgrep; do
    command -v $program > /dev/null || missing+=("$program")
  done
  [ -x /usr/lib/cni/bridge ] || missing+=("/usr/lib/cni/bridge")
  [ ${#missing[@]} = 0 ] || die "missing: ${missing[*]}. $here/install.sh installs them (Debian)"

  local try="unshare --net --mount sh -c"
  $try true 2> /dev/null || die "this machine forbids new network or mount namespaces (unshare); a container needs CAP_SYS_ADMIN for that"
  $try 'ip link add try0 type veth peer name try1 && ip link add try2 type bridge' 2> /dev/null \
    || die "this machine forbids veth pairs or bridges (ip link add); a container needs CAP_NET_ADMIN, a kernel the modules veth and bridge"
  $try 'iptables -t nat -A POSTROUTING -m comment --comment try -j MASQUERADE &&
        iptables -A OUTPUT -m conntrack --ctstate INVALID -j DROP' 2> /dev/null \
    || die "this machine forbids iptables' nat table, or its kernel lacks it"
  $try 'mount --bind /tmp /tmp && mount --make-rshared /tmp' 2> /dev/null || die "this machine forbids bind mounts"
  for root in $(cgroup_roots); do
    mkdir "$root/thresh-try" 2> /dev/null || die "this machine forbids new cgroups (mkdir in $root)"
    rmdir "$root/thresh-try"
  done
  for root in cpu cpuset memory; do
    grep -qw "$root" /sys/fs/cgroup/cgroup.controllers 2> /dev/null || cgroup_roots | grep -q "/$root\$\|/$root,\|,$root\$" \
      || die "the cgroup controller $root is not there, and kubelet needs it"
  done
  [ "${JUICEFS:-1}" = 0 ] || [ -c /dev/fuse ] || die "/dev/fuse is not there, and JuiceFS needs it; JUICEFS=0 takes a plain folder instead"
}
