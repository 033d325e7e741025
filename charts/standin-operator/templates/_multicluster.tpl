{{/* The configuration file from which the operator reads its members. */}}
{{- define "standin-operator.clusters-config" -}}
{{- $clusters := list -}}
{{- range $name, $cluster := .Values.operator.multiCluster.clusters -}}
{{- $entry := pick $cluster "server" "caData" "authType" "region" "isDefault" "namespace" -}}
{{- $clusters = append $clusters (set $entry "name" $name) -}}
{{- end -}}
{{- $multi := pick .Values.operator.multiCluster "clusterName" "defaultCluster" "managementOnly" "onUnreachable" -}}
{{- set $multi "clusters" $clusters | toYaml -}}
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
