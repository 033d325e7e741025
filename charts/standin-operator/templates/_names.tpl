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

{{/* Where the operator's own pods may be: our image is for Linux, whatever else there is in a cluster. */}}
{{- define "standin-operator.nodeSelector" -}}
{{- toYaml (merge (dict "kubernetes.io/os" "linux") .Values.operator.nodeSelector) -}}
{{- end }}

{{/* The labels of agents on nodes, by which they are selected as well. */}}
{{- define "standin-operator.nodeAgentSelector" -}}
app.kubernetes.io/name: standin-operator
app.kubernetes.io/component: node-agent
{{- end }}

{{/* The labels of the Job that uninstalls. */}}
{{- define "standin-operator.uninstallSelector" -}}
app.kubernetes.io/name: standin-operator
app.kubernetes.io/component: uninstall
{{- end }}

{{/* The rules of a NetworkPolicy that let out what goes to DNS and to the API server. */}}
{{- define "standin-operator.egressToApiServer" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
  to: [{namespaceSelector: {}}]
{{- if .Values.networkPolicy.apiServerCidrs }}
- to:
    {{- range .Values.networkPolicy.apiServerCidrs }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
{{- else }}
# No address of the API server is known.
- {}
{{- end }}
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
