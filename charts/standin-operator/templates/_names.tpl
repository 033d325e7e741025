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

{{/* The node selector of the operator's pods: the image is for Linux, and a cluster may have other nodes. */}}
{{- define "standin-operator.nodeSelector" -}}
{{- toYaml (merge (dict "kubernetes.io/os" "linux") .Values.operator.nodeSelector) -}}
{{- end }}

{{/* The labels and the selector of the agents' DaemonSet. */}}
{{- define "standin-operator.nodeAgentSelector" -}}
app.kubernetes.io/name: standin-operator
app.kubernetes.io/component: node-agent
{{- end }}

{{/* The labels of the uninstall Job. */}}
{{- define "standin-operator.uninstallSelector" -}}
app.kubernetes.io/name: standin-operator
app.kubernetes.io/component: uninstall
{{- end }}

{{/* NetworkPolicy egress rules for DNS and the API server. */}}
{{- define "standin-operator.egressToApiServer" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
  to: [{namespaceSelector: {}}]
{{- if .Values.networkPolicy.apiServerCidrs }}
- to:
    {{- range .Values.networkPolicy.apiServerCidrs }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
{{- else }}
# The address of the API server is unknown.
- {}
{{- end }}
{{- end }}

{{/* The image of the operator. A digest identifies it exactly, so the tag is left out beside it. */}}
{{- define "standin-operator.image" -}}
{{- with .Values.operator.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The image of agents. Default: the operator's image, so that both have the same version. */}}
{{- define "standin-operator.agentImage" -}}
{{- .Values.operator.agent.image | default (include "standin-operator.image" .) -}}
{{- end }}
