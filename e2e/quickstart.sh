#!/usr/bin/env bash
# The quickstart's run on a cluster: the chart, the manifest that `thresh run` takes, and the same closing line at its end.
# Called inside the cluster's network (`cluster.sh run`), or with KUBECONFIG of a cluster that has the images, and the claim
# thresh-data with the example's data in namespace thresh-quickstart.
set -euo pipefail
root=$(dirname "$(readlink -f "$0")")/..
namespace=thresh-quickstart volume=/var/lib/thresh-e2e/volume
k() { kubectl -n "$namespace" "$@"; }

kubectl create namespace "$namespace" --dry-run=client -o yaml | kubectl apply -f - > /dev/null
kubectl label namespace "$namespace" pod-security.kubernetes.io/enforce=restricted --overwrite > /dev/null
if [ -d "$volume" ]; then
  cp -r "$root/examples/quickstart/volumes/thresh-data/." "$volume/"
  kubectl apply -f - > /dev/null << Y
apiVersion: v1
kind: PersistentVolume
metadata: {name: thresh-quickstart}
spec:
  capacity: {storage: 10Gi}
  accessModes: [ReadWriteMany]
  storageClassName: ""
  persistentVolumeReclaimPolicy: Retain
  claimRef: {namespace: $namespace, name: thresh-data}
  hostPath: {path: $volume}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: thresh-data, namespace: $namespace}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  volumeName: thresh-quickstart
  resources: {requests: {storage: 1Gi}}
Y
elif ! k get pvc thresh-data > /dev/null 2>&1; then
  echo "quickstart: no claim thresh-data in namespace $namespace; make one (ReadWriteMany) and copy examples/quickstart/volumes/thresh-data to it" >&2
  exit 1
fi
# On a cluster that had no operator, none is left behind.
if ! helm status thresh --namespace thresh-system > /dev/null 2>&1; then
  trap 'k delete rljob sort5-grpo --ignore-not-found --wait --timeout=120s > /dev/null; helm uninstall thresh --namespace thresh-system --wait --timeout 120s > /dev/null' EXIT
fi
helm upgrade --install thresh "$root/charts/thresh" --namespace thresh-system --create-namespace --take-ownership \
  --values "$root/e2e/values.yaml" --wait --timeout 120s > /dev/null

k delete rljob sort5-grpo --ignore-not-found --wait --timeout=120s > /dev/null
k apply -f "$root/examples/quickstart/rljob.yaml"
uid=$(k get rljob sort5-grpo -o jsonpath='{.metadata.uid}')
shown="" until=$((SECONDS + 900))
while :; do
  line=$(k get rljob sort5-grpo --no-headers)
  [ "$line" = "$shown" ] || [ -z "$line" ] || echo "$line"
  shown=$line
  case $line in *" Complete "*) break ;; *" Failed "*) k describe rljob sort5-grpo >&2; exit 1 ;; esac
  [ $SECONDS -lt $until ] || { echo "quickstart: not done after 15 minutes" >&2; k describe rljob sort5-grpo >&2; exit 1; }
  sleep 2
done

# The line is computed from the records on the run's volume, by `thresh report` in a pod that mounts it.
k delete job quickstart-report --ignore-not-found --wait > /dev/null
k apply -f - > /dev/null << Y
apiVersion: batch/v1
kind: Job
metadata: {name: quickstart-report}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      automountServiceAccountToken: false
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      containers:
        - name: report
          image: thresh.local/operator:e2e
          command: [/usr/local/bin/thresh, report, --dir, /thresh/volume/runs/$uid, --quickstart-check]
          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
          volumeMounts: [{name: volume, mountPath: /thresh/volume, readOnly: true}]
      volumes: [{name: volume, persistentVolumeClaim: {claimName: thresh-data}}]
Y
k wait --for=condition=Complete job/quickstart-report --timeout=60s > /dev/null || failed=1
k logs job/quickstart-report
exit ${failed:-0}
