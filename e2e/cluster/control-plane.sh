# etcd, the API server, controller-manager and scheduler. Sourced by cluster.sh and, for its arguments, by apiserver-only.sh.

# Who wrote what, and who read what: each request's metadata, but for the control plane's own reads and heartbeats.
audit_policy() { # FILE
  cat > "$1" << 'END'
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, nonResourceURLs: ["/readyz*", "/livez*", "/healthz*", "/version", "/openapi*", "/api", "/api/*", "/apis", "/apis/*"]}
- {level: None, userGroups: ["system:nodes"], resources: [{group: coordination.k8s.io}]}
- {level: None, users: ["system:apiserver"], resources: [{group: coordination.k8s.io}]}
- level: None
  verbs: [get, list, watch]
  users: ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy"]
- {level: None, verbs: [get, list, watch], userGroups: ["system:nodes", "system:serviceaccounts:kube-system"]}
- {level: Metadata}
END
}

# Arguments of etcd: nothing here must survive the machine, so it never waits for a disk.
etcd_arguments() { # FOLDER CLIENT-URL PEER-URL
  echo "--name e --data-dir $1 --listen-client-urls $2 --advertise-client-urls $2 --listen-peer-urls $3 --initial-advertise-peer-urls $3
    --initial-cluster e=$3 --log-level warn --unsafe-no-fsync"
}

# Arguments that the whole cluster's API server and a lone one share. PodSecurity is among the default admission plugins: a namespace
# turns it on by its label.
apiserver_arguments() { # ETCD-URL ADDRESS PORT AUDIT-POLICY AUDIT-LOG
  echo "--etcd-servers=$1 --bind-address=$2 --secure-port=$3 --audit-policy-file=$4 --audit-log-path=$5
    --client-ca-file=$pki/ca.crt --tls-cert-file=$pki/apiserver.crt --tls-private-key-file=$pki/apiserver.key
    --service-account-issuer=https://kubernetes.default.svc.cluster.local --service-account-key-file=$pki/sa.pub
    --service-account-signing-key-file=$pki/sa.key --service-cluster-ip-range=10.96.0.0/16 --profiling=false"
}

api_ready() { # [SERVER]; without one the cluster's own, from the hub
  local from=()
  [ $# = 1 ] || from=(nsenter --net=/run/netns/thresh-hub --)
  "${from[@]}" curl -sf -m 2 --cacert "$pki/ca.crt" --cert "$pki/admin.crt" --key "$pki/admin.key" "${1:-https://$api_address:6443}/readyz"
}

# shellcheck disable=SC2046  # the argument functions print words to be split
api_start() {
  start_in node1 etcd etcd $(etcd_arguments "$run/etcd" http://127.0.0.1:2379 http://127.0.0.1:2380)
  audit_policy "$state/audit-policy.yaml"
  start_in node1 kube-apiserver kube-apiserver \
    $(apiserver_arguments http://127.0.0.1:2379 $api_address 6443 "$state/audit-policy.yaml" "$logs/audit.jsonl") \
    --advertise-address=$api_address --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
    --kubelet-client-certificate="$pki/kubelet-client.crt" --kubelet-client-key="$pki/kubelet-client.key" \
    --kubelet-certificate-authority="$pki/ca.crt" --kubelet-preferred-address-types=InternalIP \
    --requestheader-client-ca-file="$pki/ca.crt" --requestheader-allowed-names=front-proxy \
    --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
    --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --proxy-client-cert-file="$pki/front-proxy.crt" --proxy-client-key-file="$pki/front-proxy.key"
}

# Only once the API server answers: controller-manager leaves at once where none does.
controllers_start() {
  local name arguments
  for name in kube-controller-manager kube-scheduler; do
    # The default rates (20 and 50 requests a second) would make the tests wait for the controllers.
    arguments="--kubeconfig=$pki/$name.kubeconfig --authentication-kubeconfig=$pki/$name.kubeconfig
      --authorization-kubeconfig=$pki/$name.kubeconfig --bind-address=127.0.0.1 --leader-elect=false --profiling=false
      --kube-api-qps=500 --kube-api-burst=1000"
    [ $name = kube-scheduler ] || arguments+=" --root-ca-file=$pki/ca.crt --service-account-private-key-file=$pki/sa.key
      --cluster-signing-cert-file=$pki/ca.crt --cluster-signing-key-file=$pki/ca.key --use-service-account-credentials=true
      --allocate-node-cidrs=false --flex-volume-plugin-dir=$state/volumeplugins"
    # shellcheck disable=SC2086  # words
    start_in node1 $name $name $arguments
  done
}
