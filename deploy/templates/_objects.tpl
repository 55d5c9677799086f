{{/*
The objects of one file of base/ or components/, in the release's namespace. Templates return text:
`include … | fromYamlArray`.
*/}}
{{- define "koordebpf.objects" -}}
{{- $objects := list -}}
{{- range regexSplit "(?m)^---$" (.root.Files.Get .file) -1 -}}
  {{- $object := fromYaml . -}}
  {{- if not $object.kind -}}{{- fail (printf "%s has no objects: was the chart copied without base/ and components/?" $.file) -}}{{- end -}}
  {{- if or $object.metadata.namespace (eq $object.kind "DaemonSet") -}}
    {{- $_ := set $object.metadata "namespace" $.root.Release.Namespace -}}
  {{- end -}}
  {{- range $object.subjects -}}
    {{- if eq .kind "ServiceAccount" -}}{{- $_ := set . "namespace" $.root.Release.Namespace -}}{{- end -}}
  {{- end -}}
  {{- range $object.rules -}}
    {{- if has "slo-controller-config" (default list .resourceNames) -}}
      {{- $_ := set . "resourceNames" (list (include "koordebpf.configMap" $.root | base)) -}}
    {{- end -}}
  {{- end -}}
  {{- $objects = append $objects $object -}}
{{- end -}}
{{- toYaml $objects -}}
{{- end -}}

{{/* The ConfigMap with Koordinator's settings, as namespace/name: of agents, the controller and their rights. */}}
{{- define "koordebpf.configMap" -}}
{{- $given := dig "slo" "configMap" dict .Values.agent.config -}}
{{- printf "%s/%s" (default "koordinator-system" $given.namespace) (default "slo-controller-config" $given.name) -}}
{{- end -}}

{{/* Whether the controller and what is its own is wanted: "true" or nothing. */}}
{{- define "koordebpf.hasController" -}}
{{- if and .Values.controller.enabled (not .Values.besideKoordinator) -}}true{{- end -}}
{{- end -}}

{{/* Put into the spec of a pod what values say of its image. */}}
{{- define "koordebpf.setImage" -}}
{{- $image := .root.Values.image -}}
{{- $container := first .pod.containers -}}
{{- $name := printf "%s:%s" $image.repository (default .root.Chart.AppVersion $image.tag) -}}
{{- with $image.digest -}}{{- $name = printf "%s@%s" $name . -}}{{- end -}}
{{- $_ := set $container "image" $name -}}
{{- if hasKey $image "architecture" -}}{{/* not in values of an older chart, by --reuse-values */}}
{{- $_ := unset .pod.nodeSelector "kubernetes.io/arch" -}}
{{- with $image.architecture -}}{{- $_ := set $.pod.nodeSelector "kubernetes.io/arch" . -}}{{- end -}}
{{- end -}}
{{- with $image.pullPolicy -}}{{- $_ := set $container "imagePullPolicy" . -}}{{- end -}}
{{- with $image.pullSecrets -}}{{- $_ := set $.pod "imagePullSecrets" . -}}{{- end -}}
{{- end -}}
