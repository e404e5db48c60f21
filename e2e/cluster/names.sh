# Where things lie and what they are called. Sourced by cluster.sh.
state=/var/lib/thresh-e2e        # what must outlive a command and may be large: images, certificates, logs, the volume
run=/run/thresh-e2e              # pids and sockets; short, for a socket's path may have 107 bytes
logs=$state/log                  # stays after `down`, until the next `up`
pki=$state/pki
kubeconfig=$state/kubeconfig     # for programs of the machine itself: 127.0.0.1:6443
volume=$state/volume             # what pods mount as a hostPath volume
nodes_max=32

# Inside the namespaces only; the machine's own routes never see these.
hub_address=10.77.0.254
api_address=10.77.0.1            # node1 carries the control plane
node_address() { echo "10.77.0.$1"; }
pod_range() { echo "10.244.$1.0/24"; }
service_range=10.96.0.0/16
dns_address=10.96.0.10

in_hub() { nsenter --net=/run/netns/thresh-hub -- "$@"; }
in_node() { local i=$1; shift; nsenter --net="/run/netns/thresh-node$i" -- "$@"; }
as_admin() { in_hub kubectl --kubeconfig "$pki/admin.kubeconfig" "$@"; }

say() { echo "cluster: $*"; }
die() { echo "cluster: $*" >&2; exit 1; }
is_up() { [ -e "$run/up" ]; }
node_count() { cat "$run/nodes" 2> /dev/null || echo 0; }
