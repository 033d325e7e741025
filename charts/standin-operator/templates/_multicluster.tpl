{{/* The configuration file from which the operator reads its members. */}}
{{- define "standin-operator.clusters-config" -}}
{{- $clusters := list -}}
{{- range $name, $cluster := .Values.operator.multiCluster.clusters -}}
{{- $entry := pick $cluster "server" "caData" "authType" "region" "isDefault" "namespace" -}}
{{- with $entry.caData -}}
{{- $entry = set $entry "caData" (include "standin-operator.unwrapped" .) -}}
{{- end -}}
{{- $clusters = append $clusters (set $entry "name" $name) -}}
{{- end -}}
{{- $multi := pick .Values.operator.multiCluster "clusterName" "defaultCluster" "managementOnly" "onUnreachable" -}}
{{- set $multi "clusters" $clusters | toYaml -}}
{{- end }}

{{/* A value without line ends and spaces. Programs wrap base64, and files end with a line end. */}}
{{- define "standin-operator.unwrapped" -}}
{{- regexReplaceAll "\\s+" . "" -}}
{{- end }}

{{/* The members whose credentials are in Secrets: those of the values, and those of a ConfigMap that an administrator writes. */}}
{{- define "standin-operator.members-with-secrets" -}}
{{- $names := .Values.operator.multiCluster.configMapClusters -}}
{{- range $name, $cluster := .Values.operator.multiCluster.clusters -}}
{{- if ne $cluster.authType "eks" -}}
{{- $names = append $names $name -}}
{{- end -}}
{{- end -}}
{{- $names | uniq | toJson -}}
{{- end }}

{{/* The members whose tokens the operator renews and stores. For those that only the ConfigMap names, the chart cannot tell. */}}
{{- define "standin-operator.members-with-tokens" -}}
{{- $names := .Values.operator.multiCluster.configMapClusters -}}
{{- range $name, $cluster := .Values.operator.multiCluster.clusters -}}
{{- if eq $cluster.authType "bearerToken" -}}
{{- $names = append $names $name -}}
{{- end -}}
{{- end -}}
{{- $names | uniq | toJson -}}
{{- end }}

{{/* Whether a member dials out to a hub, at which the operator needs a token. That of a ConfigMap may be one. */}}
{{- define "standin-operator.uses-hub" -}}
{{- if .Values.operator.multiCluster.enabled -}}
{{- $uses := gt (len .Values.operator.multiCluster.configMapClusters) 0 -}}
{{- range .Values.operator.multiCluster.clusters -}}
{{- $uses = or $uses (eq .authType "tunnel") -}}
{{- end -}}
{{- if $uses -}}true{{- end -}}
{{- end -}}
{{- end }}

{{/* The subject that the Primary is in this cluster: a service account, or a group from IAM. */}}
{{- define "standin-operator.envoy-subject" -}}
{{- with .Values.operator.multiClusterMemberIamGroup -}}
apiGroup: rbac.authorization.k8s.io
kind: Group
name: {{ . | quote }}
{{- else -}}
kind: ServiceAccount
name: mirrord-operator-envoy
namespace: {{ .Release.Namespace }}
{{- end -}}
{{- end }}

{{/* The ports of the members' API servers, and of AWS STS if a member uses EKS tokens. */}}
{{- define "standin-operator.member-ports" -}}
{{- $ports := list -}}
{{- range .Values.operator.multiCluster.clusters -}}
{{- $host := regexReplaceAll "^https://([^/]*).*$" .server "${1}" -}}
{{- $ports = append $ports (regexFind ":[0-9]+$" $host | trimPrefix ":" | default "443") -}}
{{- if eq .authType "eks" -}}
{{- $ports = append $ports "443" -}}
{{- end -}}
{{- end -}}
{{- range $ports | uniq | sortAlpha }}
- {port: {{ . }}, protocol: TCP}
{{- end -}}
{{- end }}
