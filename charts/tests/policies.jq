# What must hold of every render, whatever the values: prints one line for each fault. Input: an array of all objects.

def name: "\(.kind) \(.metadata.namespace // "-")/\(.metadata.name)";
def hook: .metadata.annotations["helm.sh/hook"] != null;
def roles: .[] | select(.kind == "ClusterRole" or .kind == "Role");
def bindings: .[] | select(.kind == "ClusterRoleBinding" or .kind == "RoleBinding");
def pods: .[] | select(.spec.template.spec.containers != null) | {of: name, hook: hook, meta: .spec.template.metadata, spec: .spec.template.spec};
def env(n): .spec.template.spec.containers[0].env[]? | select(.name == n) | .value;
# Whether these labels are all among those.
def within($labels): to_entries | all(.key as $k | .value == $labels[$k]);

. as $all
| (.[] | select(.kind == "Deployment")) as $deployment
| ([$deployment | env("THRESH_NAMESPACES")] | length > 0) as $namespaced
| [
    # Rights: nothing by '*', nothing that gives more rights, no way into a pod, no list of Secrets.
    (roles | name as $of | .rules[] |
      (select(any(.verbs[], .apiGroups[], .resources[]; . == "*")) | "\($of): a rule with '*'"),
      (select(any(.verbs[]; IN("escalate", "bind", "impersonate"))) | "\($of): may give itself rights"),
      (select(any(.resources[]; test("^pods/(exec|attach|portforward|ephemeralcontainers)$"))) | "\($of): may enter pods"),
      (select(any(.resources[]; . == "secrets")) | .verbs - ["get", "create", "patch"] | select(. != []) | "\($of): secrets \(.)"),
      (select(any(.resources[]; . == "nodes")) | .verbs - ["get", "list", "watch"] | select(. != []) | "\($of): nodes \(.)"),
      (select(any(.resources[]; . == "pods")) | .verbs - ["get", "list", "watch", "delete"] | select(. != []) | "\($of): pods \(.)"),
      (select(any(.apiGroups[]; . == "rbac.authorization.k8s.io" or . == "admissionregistration.k8s.io" or . == "certificates.k8s.io"))
        | "\($of): writes rules for others"),
      (select(any(.resources[]; . == "customresourcedefinitions"))
        | select(.verbs != ["get"] or (.resourceNames | length) != 3) | "\($of): more than a look at our own definitions")),

    # With namespaces named, what holds everywhere only reads, and no Secret.
    (select($namespaced) | roles | select(.kind == "ClusterRole" and (.metadata.labels | keys | all(test("aggregate-to") | not)))
      | name as $of | .rules[] | select((.verbs - ["get", "list", "watch"] != []) or (.resources - ["nodes", "customresourcedefinitions"] != []))
      | "\($of): \(.resources) in all namespaces"),

    # People's roles speak of our kinds, and view only reads.
    (roles | select(.metadata.labels | keys | any(test("aggregate-to"))) | name as $of | .rules[]
      | select(.apiGroups - ["thresh.dev", "events.k8s.io"] != []) | "\($of): adds rights to kinds that are not ours"),
    (roles | select(.metadata.labels["rbac.authorization.k8s.io/aggregate-to-view"]) | name as $of | .rules[]
      | select(.verbs - ["get", "list", "watch"] != []) | "\($of): view writes"),

    # A binding binds a role of this release to an account of this release (or to one the user named).
    (bindings | name as $of | .roleRef as $ref | .metadata.namespace as $ns
      | (select(any($all[]; .kind == $ref.kind and .metadata.name == $ref.name
          and ($ref.kind == "ClusterRole" or .metadata.namespace == $ns)) | not) | "\($of): there is no \($ref.kind) \($ref.name)"),
        (.subjects[] | select(.kind != "ServiceAccount" or .namespace != $deployment.metadata.namespace) | "\($of): binds \(.kind) \(.namespace)/\(.name)"),
        (select(hook | not) | .subjects[] | select(.name != $deployment.spec.template.spec.serviceAccountName)
          | "\($of): binds \(.name), which is not the operator's")),
    (bindings | select(hook) | name as $of | .roleRef as $ref
      | select(any($all[]; hook and .kind == $ref.kind and .metadata.name == $ref.name) | not) | "\($of): its role outlives the hook"),

    # The restricted Pod Security Standard, and a file system nobody can write to.
    (pods | .of as $of | .spec
      | (select(.securityContext.runAsNonRoot != true or .securityContext.runAsUser != 65532) | "\($of): may be root"),
        (select(.securityContext.seccompProfile.type != "RuntimeDefault") | "\($of): no seccomp profile"),
        (select(.hostNetwork or .hostPID or .hostIPC) | "\($of): in a namespace of the host"),
        (select(any(.volumes[]?; .hostPath)) | "\($of): a folder of the host"),
        (.containers[] | select(.securityContext != {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: ["ALL"]}})
          | "\($of): \(.name) has another security context"),
        (.containers[] | select(.resources.limits.memory == null or .resources.requests.cpu == null) | "\($of): \(.name) has no resources"),
        (.containers[].image | select(test("(:[^/]+|@sha256:[a-f0-9]{64})$") | not) | "\($of): image \(.) has neither tag nor digest"),
        (.containers[].image | select(test(":latest$")) | "\($of): image \(.) can change")),

    # A token only where it is used: asked for by our two pods, given to no other that names the account.
    (.[] | select(.kind == "ServiceAccount") | select(.automountServiceAccountToken != false) | "\(name): gives every pod a token"),
    (pods | select(.spec.automountServiceAccountToken != true) | "\(.of): has no token to work with"),
    (pods | select(.of | test("^(Deployment|Job) ") | not) | "\(.of): a pod the policies do not know"),

    # The Job at uninstall waits for the pods the Deployment selects: it must not be one.
    (pods | select(.hook) | . as $p | select($deployment.spec.selector.matchLabels | within($p.meta.labels)) | "\(.of): waits for itself"),
    (.[] | select(.kind == "Deployment") | .spec.template.metadata.labels as $l | select(.spec.selector.matchLabels | within($l) | not)
      | "\(name): does not select its own pods"),
    (.[] | select(.kind == "Service" or .kind == "PodDisruptionBudget") | name as $of | (.spec.selector.matchLabels // .spec.selector)
      | select(within($deployment.spec.template.metadata.labels) | not) | "\($of): does not select the operator's pods"),
    (.[] | select(.kind == "NetworkPolicy") | name as $of | .spec.podSelector.matchLabels as $s | $all | pods
      | select(.meta.labels as $l | $s | within($l) | not) | "\($of): does not select \(.of)"),

    # Hooks leave nothing behind when they succeed, and begin anew after one that did not.
    (.[] | select(hook) | select(.metadata.annotations["helm.sh/hook-delete-policy"] != "before-hook-creation,hook-succeeded")
      | "\(name): stays after the hook"),

    # What the Prometheus operator reads.
    (.[] | select(.kind == "ServiceMonitor") | .spec as $m | name as $of
      | select(any($all[]; .kind == "Service" and (.metadata.labels as $l | $m.selector.matchLabels | within($l))
          and any(.spec.ports[]; .name == $m.endpoints[0].port)) | not) | "\($of): finds no Service with that port"),
    (.[] | select(.kind == "PrometheusRule") | name as $of | [.spec.groups[].rules[]] as $rules
      | ($rules | group_by(.alert)[] | select(length > 1) | "\($of): two alerts \(.[0].alert)"),
        ($rules[] | select(any(.expr, .for, .labels.severity, .annotations.summary, .annotations.description; . == null or . == ""))
          | "\($of): \(.alert) lacks something")),

    # Series that are asked for are series the operator exports; and none it exports is left out of the dashboard.
    (["thresh_reconcile_seconds", "thresh_reconcile_total", "thresh_api_writes_total", "thresh_leader", "thresh_objects",
      "thresh_run_failures", "thresh_run_step", "thresh_run_backoff_share", "thresh_run_stalled", "thresh_serving_available",
      "thresh_fences_total", "thresh_schema_outdated"] as $series
      | def asked: [scan("thresh_[a-z_]+")] | map(sub("_(bucket|sum|count)$"; "")) | unique;
        ($all[] | select(.kind == "PrometheusRule") | name as $of | .spec.groups[].rules[] | (.expr | asked) - $series
          | select(. != []) | "\($of): no such series: \(.)"),
        ($all[] | select(.kind == "ConfigMap" and .data["thresh.json"]) | name as $of
          | (.data["thresh.json"] | try fromjson catch null) as $d
          | if $d == null then "\($of): is no JSON" else
              ([$d.panels[].targets[]?.expr] | join(" ") | asked) as $a
              | ($a - $series | select(. != []) | "\($of): no such series: \(.)"),
                ($series - $a | select(. != []) | "\($of): shows no \(.)"),
                ($d.panels | group_by(.id)[] | select(length > 1) | "\($of): two panels with id \(.[0].id)")
            end)),

    # Everything says which release it is of, and where it lies.
    (.[] | select(.kind != "CustomResourceDefinition") | select(.metadata.labels["app.kubernetes.io/instance"] == null) | "\(name): no release"),
    (.[] | select(.metadata.namespace == null and (.kind | IN("CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding",
      "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding") | not)) | "\(name): no namespace")
  ]
| .[]
