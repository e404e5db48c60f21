{{/* What the operator's pod and the one that runs at uninstall share. Both pass the restricted Pod Security Standard. */}}

{{- define "thresh.pod" -}}
# The only pods of Thresh that talk to the API server.
automountServiceAccountToken: true
enableServiceLinks: false
{{- with .Values.controller.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.controller.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.controller.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.controller.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "thresh.container" -}}
image: {{ include "thresh.image" (list .Values.controller.image .Chart.AppVersion) }}
imagePullPolicy: {{ .Values.controller.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{- define "thresh.env" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: RUST_LOG
  value: {{ .Values.controller.logLevel | quote }}
{{- with .Values.controller.watchNamespaces }}
- name: THRESH_NAMESPACES
  value: {{ join "," . | quote }}
{{- end }}
{{- range .Values.controller.extraEnv }}
{{- if or (hasPrefix "THRESH_" .name) (has .name (list "POD_NAME" "POD_NAMESPACE" "RUST_LOG")) }}
{{- fail (printf "controller.extraEnv: %s is set by the chart; use the value that belongs to it" .name) }}
{{- end }}
- {{ toYaml . | nindent 2 | trim }}
{{- end }}
{{- end }}
