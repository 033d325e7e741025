{{/* The labels of every object of the chart. */}}
{{- define "standin-operator.labels" -}}
app.kubernetes.io/name: standin-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The labels by which the operator's pods are selected. They never change. */}}
{{- define "standin-operator.selector" -}}
app.kubernetes.io/name: standin-operator
app.kubernetes.io/component: operator
{{- end }}

{{/* The image of the operator. A digest says exactly which, so a tag beside it would only be decoration. */}}
{{- define "standin-operator.image" -}}
{{- with .Values.operator.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The image of agents: the operator's own, so that both always have one version, unless somebody names another. */}}
{{- define "standin-operator.agentImage" -}}
{{- .Values.operator.agent.image | default (include "standin-operator.image" .) -}}
{{- end }}
