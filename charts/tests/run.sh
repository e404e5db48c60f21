#!/usr/bin/env bash
# Tests of the charts. Needs helm 4 (in PATH, in $HELM, or as the end-to-end cluster built it) and jq. With KUBECONFIG set, a real
# API server is asked, too: whether it takes every object, keeps the rights and the guard's promise. It need have no nodes.
#   UPDATE=1 charts/tests/run.sh     writes the golden renders, cases/NAME/rendered.yaml, anew
set -euo pipefail
cd "$(dirname "$0")/.."

passed=0
failed=0
work=$(mktemp -d)
made=()

# Takes back what was made in the cluster, the last first.
close() {
    local i
    if declare -F release_serving >/dev/null; then release_serving; fi
    for ((i = ${#made[@]} - 1; i >= 0; i--)); do
        # shellcheck disable=SC2086
        kubectl delete --ignore-not-found --wait=false ${made[i]} >/dev/null 2>&1 || echo "charts: could not delete ${made[i]}"
    done
    rm -rf "$work"
    printf 'charts: %d passed, %d failed\n' "$passed" "$failed"
    [ "$failed" -eq 0 ] || exit 1
}
trap close EXIT

check() { # NAME COMMAND...: one test; what it prints is shown if it fails.
    local name=$1
    shift
    if "$@" >"$work/said" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL %s\n' "$name"
        sed 's/^/    /' "$work/said" | cut -c -500 | tail -40
    fi
}

find_helm() {
    if [ -n "${HELM:-}" ]; then echo "$HELM"; return; fi
    if command -v helm; then return; fi
    # shellcheck disable=SC2012
    ls -t "${THRESH_E2E_CACHE:-$HOME/.cache/thresh-e2e}"/*/helm 2>/dev/null | head -1
}
helm=$(find_helm)
if [ -z "$helm" ]; then
    echo "no helm: install it, set HELM, or let \`make cluster\` build it" >&2
    failed=1
    exit 1
fi
# Nothing of the user's own settings.
export HELM_CACHE_HOME=$work/helm HELM_CONFIG_HOME=$work/helm HELM_DATA_HOME=$work/helm

render() { # NAMESPACE VALUES [ARGUMENTS]
    local namespace=$1 values=$2
    shift 2
    "$helm" template thresh thresh -n "$namespace" -f "$values" "$@"
}

# Definitions are compared with crds/ by themselves, and the dashboard is a file as it is: of both, a golden render shows only that
# they are there, and how they are labelled.
without_copies() {
    awk '
        /^---/ { skip = 0; crd = 0 }
        /^# Source: thresh\/templates\/crds\// { crd = 1 }
        crd && /^spec:/ { print "# spec: as in crds/"; skip = 1 }
        /^  thresh\.json:/ { print "  # thresh.json: as in files/dashboard.json"; skip = 1 }
        !skip
    '
}

# YAML to one JSON object a line. Helm can do that, and is all we have: a chart that only prints what it is given.
to_json() { # FILE
    if [ ! -d "$work/json" ]; then
        mkdir -p "$work/json/templates"
        printf 'apiVersion: v2\nname: json\nversion: 0.0.0\n' >"$work/json/Chart.yaml"
        cat >"$work/json/templates/objects.yaml" <<'T'
{{- range regexSplit "(?m)^---.*$" (.Files.Get "objects.yaml") -1 }}
{{- with fromYaml . }}
---
{{ toJson . }}
{{- end }}
{{- end }}
T
    fi
    cp "$1" "$work/json/objects.yaml"
    "$helm" template json "$work/json" | grep '^{'
}

golden() { # CASE
    render thresh-system "tests/cases/$1/values.yaml" | without_copies >"$work/$1.yaml" || return 1
    if [ -n "${UPDATE:-}" ]; then cp "$work/$1.yaml" "tests/cases/$1/rendered.yaml"; fi
    diff -u "tests/cases/$1/rendered.yaml" "$work/$1.yaml"
}

policies() { # CASE
    render thresh-system "tests/cases/$1/values.yaml" >"$work/$1.full.yaml" || return 1
    to_json "$work/$1.full.yaml" | jq -s . >"$work/$1.json" || return 1
    # A render that lost its objects would break no policy.
    jq -e 'any(.[]; .kind == "Deployment")' "$work/$1.json" >/dev/null || { echo "no Deployment"; return 1; }
    jq -r -f tests/policies.jq "$work/$1.json" >"$work/faults" || return 1
    [ ! -s "$work/faults" ] || { cat "$work/faults"; return 1; }
}

refused() { # MESSAGE ARGUMENTS...
    local message=$1
    shift
    if render thresh-system tests/cases/defaults/values.yaml "$@" >"$work/out" 2>&1; then
        echo "was not refused"
        return 1
    fi
    grep -qF -- "$message" "$work/out" || { echo "refused, but does not say: $message"; head -20 "$work/out"; return 1; }
}

# What Helm makes of the definitions is what crds/ says, but for the annotation.
same_crds() { # CHART SOURCE KEPT [ARGUMENTS]
    local chart=$1 source=$2 kept=$3
    shift 3
    "$helm" template thresh "$chart" "$@" >"$work/crds.yaml" || return 1
    to_json "$work/crds.yaml" | jq -S -s --argjson kept "$kept" '
        [.[] | select(.kind == "CustomResourceDefinition")]
        | if all(.[]; (.metadata.annotations["helm.sh/resource-policy"] == "keep") == $kept) then . else error("kept: not \($kept)") end
        | map(del(.metadata.annotations["helm.sh/resource-policy"]) | .metadata.annotations //= {}) | sort_by(.metadata.name)' \
        >"$work/crds.rendered" || return 1
    for crd in "$source"/*.yaml; do to_json "$crd"; done \
        | jq -S -s 'map(.metadata.annotations //= {}) | sort_by(.metadata.name)' >"$work/crds.source"
    [ "$(jq length "$work/crds.source")" -gt 0 ] && diff "$work/crds.source" "$work/crds.rendered"
}

# A definition whose text holds what Helm takes for a template, without annotations and with.
odd_crds() {
    rm -rf "$work/odd" && mkdir -p "$work/odd/crds" && cp -r thresh thresh-crds "$work/odd/"
    cat >"$work/odd/crds/a.yaml" <<'C'
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: as.thresh.dev
spec:
  description: "{{ .Values.a }} and {{{ \"b\" }}} and {{- end }} and {{/* c */}}"
C
    cat >"$work/odd/crds/b.yaml" <<'C'
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  annotations:
    thresh.dev/schema-digest: "1"
  name: bs.thresh.dev
spec:
  metadata:
    description: a second `metadata:` deeper down
C
    CRDS="$work/odd/crds" ./sync-crds.sh "$work/odd" || return 1
    same_crds "$work/odd/thresh" "$work/odd/crds" true && same_crds "$work/odd/thresh-crds" "$work/odd/crds" true \
        && same_crds "$work/odd/thresh" "$work/odd/crds" false --set crds.keep=false
}

no_crds() {
    ! render thresh-system tests/cases/defaults/values.yaml --set crds.install=false | grep -q 'kind: CustomResourceDefinition'
}

notes() { # ARGUMENTS... : what is said after an install
    "$helm" install thresh thresh -n thresh-system --dry-run=client "$@" | sed -n '/^NOTES:/,$p'
}

notes_end_with_what_next() {
    notes >"$work/notes" && grep -q 'kubectl apply -f examples/quickstart/rljob.yaml' "$work/notes" || { cat "$work/notes"; return 1; }
    tail -1 "$work/notes" | grep -q 'kubectl thresh status'
}

notes_warn() {
    notes --set crds.keep=false >"$work/notes" && grep -q 'WARNING: crds.keep is off' "$work/notes" || { cat "$work/notes"; return 1; }
}

check "the charts' definitions are those of crds/" ./sync-crds.sh --check
check "the table of values in the docs is that of values.yaml" ./values-table.sh --check
check "definitions rendered by thresh are those of crds/" same_crds thresh ../crds true
check "definitions rendered by thresh-crds are those of crds/" same_crds thresh-crds ../crds true
check "definitions may go with the release" same_crds thresh ../crds false --set crds.keep=false
check "definitions whose text looks like a template survive" odd_crds
check "definitions can be left to the other chart" no_crds
check "thresh-crds refuses an unknown value" bash -c '! "$1" template x thresh-crds --set kept=true >/dev/null 2>&1' _ "$helm"
check "the notes end with what to do next" notes_end_with_what_next
check "the notes warn of definitions that go" notes_warn
check "lint thresh-crds" "$helm" lint --strict --quiet thresh-crds
cases=()
for folder in tests/cases/*/; do
    name=$(basename "$folder")
    cases+=("$name")
    check "lint $name" "$helm" lint --strict --quiet thresh -f "$folder/values.yaml"
    check "golden $name" golden "$name"
    check "policies $name" policies "$name"
done
while IFS= read -r line; do
    case $line in '' | '#'*) continue ;; esac
    read -ra arguments <<<"${line%% | *}"
    check "refused: ${line%% | *}" refused "${line#* | }" "${arguments[@]}"
done <tests/refusals.txt

if [ -z "${KUBECONFIG:-}" ]; then
    echo "charts: KUBECONFIG is not set: no API server was asked"
    exit 0
fi
command -v kubectl >/dev/null || PATH=$PATH:$(dirname "$helm")
. tests/server.sh
