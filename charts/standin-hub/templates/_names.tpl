{{/* The labels of every object of the chart. */}}
{{- define "standin-hub.labels" -}}
app.kubernetes.io/name: standin-hub
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The labels by which the hub's pods are selected. They never change. */}}
{{- define "standin-hub.selector" -}}
app.kubernetes.io/name: standin-hub
app.kubernetes.io/component: hub
{{- end }}

{{/* The node selector: the image is for Linux, and a cluster may have other nodes. */}}
{{- define "standin-hub.nodeSelector" -}}
{{- toYaml (merge (dict "kubernetes.io/os" "linux") .Values.hub.nodeSelector) -}}
{{- end }}

{{/* The image. A digest identifies it exactly, so the tag is left out beside it. */}}
{{- define "standin-hub.image" -}}
{{- with .Values.hub.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The file that the hub reads: values that are not set are left out. */}}
{{- define "standin-hub.configuration" -}}
{{- $agent := dict "chart" .Values.agent.chart -}}
{{- range $key := list "url" "registrationURL" "tunnelSANs" -}}
{{- with get $.Values.agent $key -}}
{{- $agent = set $agent $key . -}}
{{- end -}}
{{- end -}}
{{- range $key := list "tokenLifetimeSecs" "certificateLifetimeSecs" "authorityLifetimeSecs" -}}
{{- $agent = set $agent $key (int64 (get $.Values.agent $key)) -}}
{{- end -}}
{{- range $key := list "registrations" "limits" -}}
{{- $numbers := dict -}}
{{- range $name, $number := get $.Values.agent $key -}}
{{- $numbers = set $numbers $name (int64 $number) -}}
{{- end -}}
{{- $agent = set $agent $key $numbers -}}
{{- end -}}
{{- $configuration := dict "agent" $agent "clusters" .Values.clusters -}}
{{- with .Values.apiURL -}}
{{- $configuration = set $configuration "apiURL" . -}}
{{- end -}}
{{- $proxy := pick .Values.proxy "allowServiceAccounts" "primaryOperators" -}}
{{- $proxy = set $proxy "responseTimeoutSecs" (int64 .Values.proxy.responseTimeoutSecs) -}}
{{- $configuration = set $configuration "proxy" $proxy -}}
{{- $providers := list -}}
{{- range $index, $provider := .Values.authentication.oidc -}}
{{- $entry := omit $provider "ca" -}}
{{- if $provider.ca -}}
{{- $entry = set $entry "caFile" (printf "/etc/standin/oidc-%d.crt" $index) -}}
{{- end -}}
{{- $providers = append $providers $entry -}}
{{- end -}}
{{- $authentication := dict "audiences" .Values.authentication.audiences "oidc" $providers -}}
{{- if .Values.authentication.clientCA -}}
{{- $authentication = set $authentication "clientCAFile" "/etc/standin/client-ca.crt" -}}
{{- end -}}
{{- $configuration = set $configuration "authentication" $authentication -}}
{{- with .Values.apiSANs -}}
{{- $configuration = set $configuration "apiSANs" . -}}
{{- end -}}
{{- toYaml $configuration -}}
{{- end }}
