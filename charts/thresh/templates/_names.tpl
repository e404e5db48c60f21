{{/* Names and labels. Every object is named after the release: release `thresh` has the Deployment `thresh-operator`. */}}

{{- define "thresh.name" -}}
{{- printf "%s-operator" .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "thresh.serviceAccount" -}}
{{- if .Values.serviceAccount.name }}
{{- .Values.serviceAccount.name }}
{{- else if .Values.serviceAccount.create }}
{{- include "thresh.name" . }}
{{- else -}}
default
{{- end }}
{{- end }}

{{- define "thresh.release" -}}
app.kubernetes.io/name: thresh-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* What selects the operator's pods. The pod that runs at uninstall has another component: it waits for these to be gone. */}}
{{- define "thresh.selector" -}}
{{ include "thresh.release" . }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "thresh.labels" -}}
{{ include "thresh.release" . }}
app.kubernetes.io/part-of: thresh
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end }}

{{/* A list of an image's values and the tag that stands in for none. */}}
{{- define "thresh.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest }}
{{- printf "%s@%s" $image.repository $image.digest }}
{{- else }}
{{- printf "%s:%s" $image.repository ($image.tag | default (index . 1)) }}
{{- end }}
{{- end }}
