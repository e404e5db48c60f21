{{/* What the operator may do. Each rule is a verb it uses; nothing here is for convenience. */}}

{{/* In the namespaces it serves: by a ClusterRole for all of them, or by a Role in each. */}}
{{- define "thresh.rules.served" -}}
# Our kinds. It writes status, finalizers, and the children of templates.
- apiGroups: [thresh.dev]
  resources: [rljobs, servingclusters, rolloutpools]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [thresh.dev]
  resources: [rljobs/status, servingclusters/status, rolloutpools/status]
  verbs: [patch]
- apiGroups: [thresh.dev]
  resources: [rljobs/finalizers, servingclusters/finalizers, rolloutpools/finalizers]
  verbs: [update]
# Their children.
- apiGroups: [""]
  resources: [configmaps, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [statefulsets, daemonsets, controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# Pods are made by their controllers. It reads how they ended, and deletes those that are lost.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
# The tokens it makes itself, each by its name: it cannot list what others keep.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
# Gangs and queues, where the cluster has them.
- apiGroups: [scheduling.volcano.sh, scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [list]
{{- end }}

{{/* What has no namespace. It only reads. */}}
{{- define "thresh.rules.cluster" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch]
# Whether the served schema is as new as the operator.
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames: [rljobs.thresh.dev, servingclusters.thresh.dev, rolloutpools.thresh.dev]
  verbs: [get]
{{- end }}

{{/* At uninstall: taking finalizers off. */}}
{{- define "thresh.rules.uninstall" -}}
- apiGroups: [thresh.dev]
  resources: [rljobs, servingclusters, rolloutpools]
  verbs: [get, list, patch]
{{- end }}
