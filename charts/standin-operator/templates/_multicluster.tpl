{{/* The file of which the operator reads its members. */}}
{{- define "standin-operator.clusters-config" -}}
{{- $clusters := list -}}
{{- range $name, $cluster := .Values.operator.multiCluster.clusters -}}
{{- $entry := pick $cluster "server" "caData" "authType" "region" "isDefault" "namespace" -}}
{{- $clusters = append $clusters (set $entry "name" $name) -}}
{{- end -}}
{{- $multi := pick .Values.operator.multiCluster "clusterName" "defaultCluster" "managementOnly" "onUnreachable" -}}
{{- set $multi "clusters" $clusters | toYaml -}}
{{- end }}

{{/* Who comes from the Primary: an account of this cluster, or a group that IAM gives. */}}
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
