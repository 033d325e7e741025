{{/* The labels of every object of the chart. */}}
{{- define "standin-tunnel-agent.labels" -}}
app.kubernetes.io/name: standin-tunnel-agent
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The labels by which the agent's pod is selected. They never change. */}}
{{- define "standin-tunnel-agent.selector" -}}
app.kubernetes.io/name: standin-tunnel-agent
app.kubernetes.io/component: tunnel-agent
{{- end }}

{{/* The node selector: the image is for Linux, and a cluster may have other nodes. */}}
{{- define "standin-tunnel-agent.nodeSelector" -}}
{{- toYaml (merge (dict "kubernetes.io/os" "linux") .Values.agent.nodeSelector) -}}
{{- end }}

{{/* The image. A digest identifies it exactly, so the tag is left out beside it. */}}
{{- define "standin-tunnel-agent.image" -}}
{{- with .Values.agent.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The Secret with the registration token. It may be missing. */}}
{{- define "standin-tunnel-agent.tokenSecret" -}}
{{- .Values.agent.registrationTokenSecretName | default "standin-tunnel-agent-registration" -}}
{{- end }}

{{/*
The `resourceNames` of a rule, from patterns: RBAC knows only full names, so with a pattern among them the rule is for all names,
and the agent alone enforces the patterns.
*/}}
{{- define "standin-tunnel-agent.resourceNames" -}}
{{- $names := list -}}
{{- $isOpen := false -}}
{{- range . -}}
{{- if hasSuffix "*" . -}}
{{- $isOpen = true -}}
{{- else -}}
{{- $names = append $names . -}}
{{- end -}}
{{- end -}}
{{- if not $isOpen -}}
resourceNames: {{ $names | uniq | toJson }}
{{- end -}}
{{- end }}
