{{/* The labels of every object of the chart. */}}
{{- define "standin-operator.labels" -}}
app.kubernetes.io/name: standin-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The labels by which the operator's pods are selected. They never change. */}}
{{- define "standin-operator.selector" -}}
app.kubernetes.io/name: standin-operator
app.kubernetes.io/component: operator
{{- end }}

{{- define "standin-operator.image" -}}
{{ .Values.operator.image.repository }}:{{ .Values.operator.image.tag | default .Chart.AppVersion }}
{{- end }}
