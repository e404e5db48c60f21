# The part of run.sh that asks a real API server. It makes namespaces, the definitions where they are missing, and the guard under
# a name of its own, and takes them away again.
# shellcheck shell=bash

# Names nobody else has: a namespace may take its time to go.
id=$RANDOM
namespace=thresh-charts-$id
served=research-$id-a
doomed=research-$id-b
until_true() { # SECONDS COMMAND...
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || { "$@"; return; }
        sleep 0.2
    done
}
ensure() { # KIND NAME [ARGUMENTS]: makes it if it is not there, and remembers to delete it
    local kind=$1 name=$2
    shift 2
    kubectl get "$kind" "$name" >/dev/null 2>&1 && return
    kubectl create "$kind" "$name" "$@" >/dev/null
    made+=("$kind $name")
}

# Lets go of what a test that failed may have left; called before the namespaces are deleted.
release_serving() {
    local n
    for n in "$namespace" "$served" "$doomed"; do
        kubectl annotate --overwrite -n "$n" servingcluster engines thresh.dev/force-delete=true
        kubectl patch -n "$n" servingcluster engines --type merge -p '{"metadata":{"finalizers":null}}'
        kubectl delete -n "$n" servingcluster engines --wait=false
    done >/dev/null 2>&1 || true
}

# The strictest pods a namespace can ask for.
for n in "$namespace" "$served" "$doomed"; do
    ensure namespace "$n"
    kubectl label --overwrite namespace "$n" pod-security.kubernetes.io/enforce=restricted >/dev/null
done
for crd in ../crds/*.yaml; do
    name=$(basename "$crd" .yaml)
    name=${name#*_}.${name%%_*}
    # One that is on its way out, from a run before, takes nothing new.
    [ -z "$(kubectl get crd "$name" --ignore-not-found -o jsonpath='{.metadata.deletionTimestamp}')" ] \
        || kubectl wait --for delete --timeout 30s crd "$name" || true
    kubectl get crd "$name" >/dev/null 2>&1 || made+=("crd $name")
done
install_crds() {
    render "$namespace" tests/cases/defaults/values.yaml --show-only 'templates/crds/*.yaml' >"$work/crds.yaml" || return 1
    kubectl apply --server-side --force-conflicts --validate=strict -f "$work/crds.yaml" || return 1
    kubectl wait --for condition=Established --timeout 30s crd rljobs.thresh.dev servingclusters.thresh.dev rolloutpools.thresh.dev
}
check "server: takes the definitions" install_crds

# Each object of each case, read strictly: a field that is misspelt is an error.
accepted() { # CASE
    sed "s/research-/research-$id-/g" "tests/cases/$1/values.yaml" >"$work/values.yaml"
    render "$namespace" "$work/values.yaml" >"$work/all.yaml" || return 1
    to_json "$work/all.yaml" >"$work/all.json" || return 1
    local monitors='^$'
    kubectl get crd servicemonitors.monitoring.coreos.com prometheusrules.monitoring.coreos.com >/dev/null 2>&1 || {
        monitors='^(ServiceMonitor|PrometheusRule)$'
        skipped=$((skipped + $(jq -s --arg m "$monitors" 'map(select(.kind | test($m))) | length' "$work/all.json")))
    }
    jq -s --arg m "$monitors" '{apiVersion: "v1", kind: "List", items: map(select(.kind | test($m) | not))}' "$work/all.json" >"$work/list.json"
    kubectl apply --dry-run=server --validate=strict -f "$work/list.json"
}
skipped=0
for name in "${cases[@]}"; do check "server: takes $name" accepted "$name"; done
[ "$skipped" -eq 0 ] || echo "charts: $skipped ServiceMonitors and PrometheusRules were not asked about: the cluster has no such kinds"

# The pods themselves: a Deployment is taken even if no pod of it would be.
restricted() { # CASE KIND
    render "$namespace" "tests/cases/$1/values.yaml" >"$work/all.yaml" || return 1
    to_json "$work/all.yaml" | jq --arg k "$2" 'select(.kind == $k) | {apiVersion: "v1", kind: "Pod",
        metadata: (.spec.template.metadata + {name: .metadata.name, namespace: .metadata.namespace}),
        spec: (.spec.template.spec | .serviceAccountName = "charts")}' >"$work/pod.json" || return 1
    [ -s "$work/pod.json" ] && kubectl apply --dry-run=server --validate=strict -f "$work/pod.json"
}
kubectl create serviceaccount charts -n "$namespace" >/dev/null 2>&1 || true
check "server: the operator's pod passes restricted pod security" restricted everything Deployment
check "server: the uninstall pod passes restricted pod security" restricted defaults Job

# Rights and guard, for real, under another release's name.
install_release() { # VALUES...
    "$helm" template thresh-charts thresh -n "$namespace" --set crds.install=false "$@" >"$work/release.yaml" || return 1
    to_json "$work/release.yaml" | jq -s '{apiVersion: "v1", kind: "List", items: map(select(.kind
        | test("^((Cluster)?Role(Binding)?|ServiceAccount|ValidatingAdmissionPolicy(Binding)?)$")))}' >"$work/release.json" || return 1
    kubectl apply --validate=strict -f "$work/release.json"
}
remember_release() {
    local object
    while read -r object; do made+=("$object"); done < <(jq -r '.items[] | select(.metadata.namespace == null) | "\(.kind) \(.metadata.name)"' "$work/release.json")
}
check "server: takes roles and guard" install_release
remember_release

can() { # yes|no ACCOUNT VERB RESOURCE [ARGUMENTS]
    local want=$1 account=$2 answer
    shift 2
    answer=$(kubectl auth can-i "$@" --as "system:serviceaccount:$namespace:$account" 2>/dev/null || true)
    [ "$answer" = "$want" ] || { echo "can-i $*: $answer, not $want"; return 1; }
}
operator=thresh-charts-operator
rights() {
    until_true 10 can yes $operator list rljobs -A || return 1
    local line
    while read -r line; do
        # shellcheck disable=SC2086
        can no $operator $line || return 1
    done <<'R'
list secrets -A
watch secrets -A
list secrets -n kube-system
delete secrets -A
create pods -A
patch pods -A
create pods --subresource exec -A
create pods --subresource attach -A
create pods --subresource portforward -A
patch nodes
delete nodes
create clusterroles
patch roles -A
bind clusterroles
escalate clusterroles
impersonate users
create serviceaccounts --subresource token -A
list deployments -A
patch customresourcedefinitions/rljobs.thresh.dev
get customresourcedefinitions/nodes.example.org
get leases/other -n kube-system
delete persistentvolumeclaims -A
R
    while read -r line; do
        # shellcheck disable=SC2086
        can yes $operator $line || return 1
    done <<R
patch rljobs --subresource status -A
patch servingclusters --subresource status -A
update rolloutpools --subresource finalizers -A
create statefulsets.apps -A
delete jobs.batch -A
create secrets -A
get secrets -A
delete pods -A
watch nodes
create events.events.k8s.io -A
get customresourcedefinitions/rljobs.thresh.dev
create leases.coordination.k8s.io -n $namespace
patch leases.coordination.k8s.io/thresh-operator -n $namespace
R
}
check "server: the operator's account may do what it needs and no more" rights

hook_rights() {
    local hook=$operator-uninstall
    until_true 10 can yes $hook list rljobs -A || return 1
    can yes $hook patch servingclusters -A && can yes $hook patch deployments.apps/$operator -n "$namespace" \
        && can yes $hook patch deployments.apps/$operator --subresource scale -n "$namespace" && can yes $hook list pods -n "$namespace" \
        && can no $hook patch deployments.apps/other -n "$namespace" && can no $hook delete rljobs -A && can no $hook get secrets -A \
        && can no $hook list pods -n kube-system
}
check "server: the uninstall account may stop the operator and take finalizers off, no more" hook_rights

cat >"$work/serving.yaml" <<E
apiVersion: thresh.dev/v1alpha1
kind: ServingCluster
metadata: {name: engines, namespace: $namespace}
spec:
  model: {source: pvc://data/model}
  storage: {claimName: data}
  accelerator: {vendor: cpu}
  engine: {kind: Native}
E
# Two runs that exist, so that no garbage collector takes what they own.
sed "s/^  name: sort5-grpo$/  name: chess/" ../examples/quickstart/rljob.yaml >"$work/chess.yaml"
sed "s/^  name: sort5-grpo$/  name: checkers/" ../examples/quickstart/rljob.yaml >"$work/checkers.yaml"
uid() { kubectl get rljob -n "$namespace" "$1" -o jsonpath='{.metadata.uid}'; }
runs() {
    kubectl apply --validate=strict -n "$namespace" -f "$work/chess.yaml" -f "$work/checkers.yaml" || return 1
    chess=$(uid chess)
    writer='{"rljob":"chess","uid":"'$chess'"}'
}
serve() { # NAMESPACE WRITER [OWNER]: a ServingCluster that nobody writes (null), or that a run does
    sed "s/namespace: $namespace/namespace: $1/" "$work/serving.yaml" | kubectl apply --validate=strict -f - || return 1
    kubectl annotate -n "$1" servingcluster engines thresh.dev/force-delete- >/dev/null || return 1
    local owners=null
    if [ -n "${3:-}" ]; then
        owners='[{"apiVersion":"thresh.dev/v1alpha1","kind":"RLJob","name":"'$3'","uid":"'$(uid "$3")'"}]'
    fi
    kubectl patch -n "$1" servingcluster engines --type merge -p '{"metadata":{"ownerReferences":'"$owners"'}}' || return 1
    kubectl patch -n "$1" servingcluster engines --subresource status --type merge -p '{"status":{"weights":{"writer":'"$2"'}}}'
}
delete_it() { kubectl delete --dry-run=server -n "$namespace" servingcluster engines "$@"; }
is_refused() { ! kubectl delete --dry-run=server -n "$1" servingcluster engines; }
refuses() { # WORDS... -- ARGUMENTS: the deletion is refused, and the answer holds all the words
    local words=()
    while [ "$1" != -- ]; do words+=("$1"); shift; done
    shift
    local said word
    if said=$(delete_it "$@" 2>&1); then echo "was deleted: $said"; return 1; fi
    for word in "${words[@]}"; do [[ $said == *"$word"* ]] || { echo "does not say '$word': $said"; return 1; }; done
}
held() {
    serve "$namespace" "$writer" || return 1
    # The policy is known a moment after it is made.
    until_true 30 refuses forbidden -- || return 1
    refuses forbidden "RLJob chess" "uid $chess" "kubectl annotate -n $namespace servingcluster engines thresh.dev/force-delete=true" --
}
collection() {
    local said
    if said=$(kubectl delete --raw "/apis/thresh.dev/v1alpha1/namespaces/$namespace/servingclusters?dryRun=All" 2>&1); then
        echo "was deleted: $said"
        return 1
    fi
    [[ $said == *"RLJob chess"* ]] || { echo "$said"; return 1; }
}
controllers=system:serviceaccount:kube-system
as() { printf '%s\n' --as "$1" --as-group system:masters; }
collector_follows_the_writer() {
    serve "$namespace" "$writer" chess || return 1
    local user
    for user in $controllers:generic-garbage-collector system:kube-controller-manager; do
        # shellcheck disable=SC2046
        delete_it $(as "$user") || return 1
    done
    refuses "RLJob chess" --
}
collector_waits_for_another() {
    serve "$namespace" "$writer" checkers || return 1
    # shellcheck disable=SC2046
    refuses "RLJob chess" -- $(as $controllers:generic-garbage-collector)
}
exempt() { # USER
    serve "$namespace" "$writer" || return 1
    # shellcheck disable=SC2046
    delete_it $(as "$1")
}
# Others than that controller can empty a namespace: what lies in one that is being deleted may go.
in_a_namespace_that_goes() {
    serve "$doomed" "$writer" || return 1
    until_true 10 is_refused "$doomed" || return 1
    # What lies in it keeps the namespace there for long enough, also where a controller empties namespaces.
    kubectl patch -n "$doomed" servingcluster engines --type merge -p '{"metadata":{"finalizers":["thresh.dev/charts-test"]}}' || return 1
    kubectl delete namespace "$doomed" --wait=false || return 1
    until_true 10 kubectl delete --dry-run=server -n "$doomed" servingcluster engines || return 1
    kubectl patch -n "$doomed" servingcluster engines --type merge -p '{"metadata":{"finalizers":null}}'
}
forced() {
    serve "$namespace" "$writer" || return 1
    kubectl annotate -n "$namespace" servingcluster engines thresh.dev/force-delete=false && refuses "RLJob chess" -- || return 1
    kubectl annotate --overwrite -n "$namespace" servingcluster engines thresh.dev/force-delete=true && delete_it
}
idle() { serve "$namespace" null && delete_it; }
no_status() {
    serve "$namespace" "$writer" || return 1
    kubectl patch -n "$namespace" servingcluster engines --subresource status --type json -p '[{"op":"remove","path":"/status"}]' && delete_it
}
asked_twice() {
    serve "$namespace" "$writer" || return 1
    kubectl patch -n "$namespace" servingcluster engines --type merge -p '{"metadata":{"finalizers":["thresh.dev/charts-test"]}}' || return 1
    kubectl annotate --overwrite -n "$namespace" servingcluster engines thresh.dev/force-delete=true || return 1
    kubectl delete --wait=false -n "$namespace" servingcluster engines || return 1
    kubectl annotate -n "$namespace" servingcluster engines thresh.dev/force-delete- || return 1
    delete_it || return 1
    kubectl patch -n "$namespace" servingcluster engines --type merge -p '{"metadata":{"finalizers":null}}'
}
check "server: takes the quickstart's RLJob" runs
check "guard: a ServingCluster that a run writes is not deleted, and the answer names the run" held
check "guard: nor with all the others of its namespace" collection
check "guard: the garbage collector may follow the run that owned and wrote it" collector_follows_the_writer
check "guard: the garbage collector waits while another run writes it" collector_waits_for_another
check "guard: the namespace controller may" exempt $controllers:namespace-controller
check "guard: the operator may" exempt "system:serviceaccount:$namespace:$operator"
check "guard: whoever says so by an annotation may, and only by 'true'" forced
check "guard: without a writer anybody may" idle
check "guard: without a status anybody may" no_status
check "guard: asking twice is no fault" asked_twice
check "guard: what lies in a namespace that is deleted may go" in_a_namespace_that_goes

# The controllers themselves, where they run.
gone() { [ -z "$(kubectl get -n "$1" "$2" "$3" --ignore-not-found -o name)" ]; }
collected() {
    serve "$namespace" "$writer" chess && kubectl delete rljob -n "$namespace" chess || return 1
    until_true 30 gone "$namespace" servingcluster engines
}
collected_later() {
    runs && serve "$namespace" "$writer" checkers && kubectl delete rljob -n "$namespace" checkers || return 1
    sleep 5
    ! gone "$namespace" servingcluster engines || { echo "was collected"; return 1; }
    [ -z "$(kubectl get -n "$namespace" servingcluster engines -o jsonpath='{.metadata.deletionTimestamp}')" ] || { echo "is being deleted"; return 1; }
    kubectl patch -n "$namespace" servingcluster engines --subresource status --type merge -p '{"status":{"weights":{"writer":null}}}' || return 1
    # It asks again later each time.
    until_true 60 gone "$namespace" servingcluster engines
}
namespace_gone() { until_true 60 gone "$namespace" namespace "$doomed"; }
controller_manager=false
kubectl get lease -n kube-system kube-controller-manager >/dev/null 2>&1 && controller_manager=true
if $controller_manager; then
    check "guard: a run that made its engines and is deleted takes them along" collected
    check "guard: engines another run writes stay until it lets them go" collected_later
    check "guard: a namespace with a ServingCluster in use can be deleted" namespace_gone
else
    echo "charts: no controller manager: its garbage collector, namespaces and aggregated roles were not tried"
fi

# Served namespaces only: a Role in each, and the guard in them alone.
kubectl delete -f "$work/release.json" >/dev/null || true
namespaced_rights() {
    install_release --set "controller.watchNamespaces={$served}" || return 1
    remember_release
    until_true 10 can yes $operator list rljobs -n "$served" && until_true 10 can no $operator list rljobs -A || return 1
    can no $operator get secrets -n "$namespace" && can yes $operator get secrets -n "$served" && can yes $operator list nodes \
        && can no $operator create statefulsets.apps -n "$namespace" && can yes $operator create statefulsets.apps -n "$served" \
        && can no $operator-uninstall list rljobs -A && can yes $operator-uninstall patch rljobs -n "$served"
}
namespaced_guard() {
    serve "$served" "$writer" && serve "$namespace" "$writer" || return 1
    until_true 30 is_refused "$served" || return 1
    delete_it
}
check "server: with namespaces named, the account has rights in them alone" namespaced_rights
check "guard: with namespaces named, it guards them alone" namespaced_guard
# People's own roles take ours in, where the controller runs that does it.
people() {
    kubectl get clusterrole view -o json \
        | jq -e 'any(.rules[]; .apiGroups == ["thresh.dev"] and (.resources | index("rljobs")) and .verbs == ["get", "list", "watch"])' || return 1
    kubectl get clusterrole edit -o json | jq -e 'any(.rules[]; .apiGroups == ["thresh.dev"] and (.verbs | index("deletecollection")))'
}
if $controller_manager; then check "server: view and edit take in our kinds" until_true 20 people; fi
