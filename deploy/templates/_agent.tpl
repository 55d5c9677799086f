{{/*
The agents of one mode, observe or enforce, and their configuration.
*/}}
{{- define "koordebpf.agent" -}}
{{- $values := .root.Values -}}
{{- $enforces := eq .mode "enforce" -}}
{{- $daemonset := include "koordebpf.objects" (dict "root" .root "file" "base/agent/daemonset.yaml") | fromYamlArray | first -}}
{{- $pod := $daemonset.spec.template.spec -}}
{{- $container := first $pod.containers -}}
{{- $_ := include "koordebpf.setImage" (dict "root" .root "pod" $pod) -}}
{{- with $values.agent.resources -}}{{- $_ := set $container "resources" . -}}{{- end -}}

{{- /* The pods: where they run, and in which mode. */ -}}
{{- $selector := merge (deepCopy $values.agent.nodeSelector) $pod.nodeSelector -}}
{{- if $enforces -}}
  {{- $_ := set $daemonset.metadata "name" (printf "%s-enforce" $daemonset.metadata.name) -}}
  {{- range list $daemonset.metadata.labels $daemonset.spec.selector.matchLabels $daemonset.spec.template.metadata.labels -}}
    {{- $_ := set . "koordebpf.io/mode" "enforce" -}}
  {{- end -}}
  {{- $_ := set $container "args" (concat $container.args (list "--enforce" "--stand-by")) -}}
  {{- $selector = merge (deepCopy $values.enforce.nodeSelector) $selector -}}
{{- else if $values.enforce.enabled -}}
  {{- /* Not where all labels of the pool are: one alternative for each that may be missing. */ -}}
  {{- $terms := list -}}
  {{- range $key, $value := $values.enforce.nodeSelector -}}
    {{- $expression := dict "key" $key "operator" "NotIn" "values" (list $value) -}}
    {{- $terms = append $terms (dict "matchExpressions" (list $expression)) -}}
  {{- end -}}
  {{- $required := dict "nodeSelectorTerms" $terms -}}
  {{- $_ := set $pod "affinity" (dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" $required)) -}}
{{- end -}}
{{- $_ := set $pod "nodeSelector" $selector -}}

{{- /* As components/layers has it; its mounts are below. */ -}}
{{- if $values.agent.layers -}}
  {{- $capabilities := $container.securityContext.capabilities -}}
  {{- $_ := set $capabilities "add" (append $capabilities.add "DAC_READ_SEARCH") -}}
{{- end -}}

{{- /* As components/oom-score-adj and components/core-sched have it; their gates are below. */ -}}
{{- $hooks := list -}}
{{- if $values.agent.oomScoreAdj -}}{{- $hooks = append $hooks (list "OOMScoreAdj" "DAC_OVERRIDE") -}}{{- end -}}
{{- if $values.agent.coreSched -}}{{- $hooks = append $hooks (list "CoreSched" "SYS_PTRACE") -}}{{- end -}}
{{- range $hooks -}}
  {{- $_ := set $pod "hostPID" true -}}
  {{- $capabilities := $container.securityContext.capabilities -}}
  {{- $_ := set $capabilities "add" (append $capabilities.add (last .)) -}}
{{- end -}}

{{- /* As components/host-processes and components/privileged have it. */ -}}
{{- if $values.agent.hostProcesses -}}
  {{- $_ := set $pod "hostPID" true -}}
  {{- $capabilities := $container.securityContext.capabilities -}}
  {{- $_ := set $capabilities "add" (append $capabilities.add "KILL") -}}
  {{- if semverCompare ">=1.30-0" .root.Capabilities.KubeVersion.Version -}}
    {{- $_ := set $container.securityContext "appArmorProfile" (dict "type" "Unconfined") -}}
  {{- else -}}
    {{- $annotation := "container.apparmor.security.beta.kubernetes.io/agent" -}}
    {{- $_ := set $daemonset.spec.template.metadata.annotations $annotation "unconfined" -}}
  {{- end -}}
{{- end -}}
{{- if $values.agent.privileged -}}
  {{- $_ := set $container "securityContext" (dict "privileged" true "runAsUser" 0 "readOnlyRootFilesystem" true) -}}
{{- end -}}

{{- /* As components/katalyst has it. */ -}}
{{- if $values.agent.katalyst -}}
  {{- $_ := set $container "args" (append $container.args "--feature-gates=KatalystEviction=true") -}}
  {{- $notices := dict "name" "katalyst-notices" "mountPath" "/opt/katalyst" -}}
  {{- $plugins := dict "name" "katalyst-plugins" "mountPath" "/var/lib/katalyst/plugin-socks" "readOnly" true -}}
  {{- range list $notices $plugins -}}
    {{- $_ := set $container "volumeMounts" (append $container.volumeMounts .) -}}
    {{- $volume := dict "name" .name "hostPath" (dict "path" .mountPath "type" "DirectoryOrCreate") -}}
    {{- $_ := set $pod "volumes" (append $pod.volumes $volume) -}}
  {{- end -}}
{{- end -}}

{{- /* As components/instead-of-koordlet has it. */ -}}
{{- if $values.agent.insteadOfKoordlet -}}
  {{- $reports := "NodeMetricReport=true,NodeTopologyReport=true,PeakPrediction=true" -}}
  {{- $hooks := "BatchResource=true,CPUSetAllocator=true,GroupIdentity=true,CPUBurst=true" -}}
  {{- $_ := set $container "args" (append $container.args (printf "--feature-gates=%s,%s" $reports $hooks)) -}}
  {{- $folder := "/var/run/koordlet/prediction-checkpoints" -}}
  {{- $mount := dict "name" "koordlet-models" "mountPath" $folder "readOnly" true -}}
  {{- $_ := set $container "volumeMounts" (append $container.volumeMounts $mount) -}}
  {{- $volume := dict "name" "koordlet-models" "hostPath" (dict "path" $folder "type" "DirectoryOrCreate") -}}
  {{- $_ := set $pod "volumes" (append $pod.volumes $volume) -}}
{{- end -}}

{{- /* As components/oom-score-adj and components/core-sched have it. */ -}}
{{- range $hooks -}}
  {{- $_ := set $container "args" (append $container.args (printf "--feature-gates=%s=true" (first .))) -}}
{{- end -}}

{{- /* As components/cri and components/cri-o have it. */ -}}
{{- with $values.agent.criDirectory -}}
  {{- $mount := dict "name" "container-runtime" "mountPath" . "readOnly" true "mountPropagation" "HostToContainer" -}}
  {{- $_ := set $container "volumeMounts" (append $container.volumeMounts $mount) -}}
  {{- $volume := dict "name" "container-runtime" "hostPath" (dict "path" . "type" "Directory") -}}
  {{- $_ := set $pod "volumes" (append $pod.volumes $volume) -}}
{{- end -}}

{{- /* As components/nri has it. */ -}}
{{- if $values.agent.nri -}}
  {{- $folder := "/var/run/nri" -}}
  {{- $mount := dict "name" "nri" "mountPath" $folder "readOnly" true -}}
  {{- $_ := set $container "volumeMounts" (append $container.volumeMounts $mount) -}}
  {{- $volume := dict "name" "nri" "hostPath" (dict "path" $folder "type" "DirectoryOrCreate") -}}
  {{- $_ := set $pod "volumes" (append $pod.volumes $volume) -}}
{{- end -}}

{{- /* As components/kubelet-state has it. */ -}}
{{- if $values.agent.kubeletState -}}
  {{- $folder := "/var/lib/kubelet" -}}
  {{- $mount := dict "name" "kubelet-state" "mountPath" $folder "readOnly" true "mountPropagation" "HostToContainer" -}}
  {{- $_ := set $container "volumeMounts" (append $container.volumeMounts $mount) -}}
  {{- $volume := dict "name" "kubelet-state" "hostPath" (dict "path" $folder "type" "Directory") -}}
  {{- $_ := set $pod "volumes" (append $pod.volumes $volume) -}}
{{- end -}}

{{- /* As components/layers has it. */ -}}
{{- if $values.agent.layers -}}
  {{- $tasks := "/run/containerd/io.containerd.runtime.v2.task" -}}
  {{- range list (list "container-mounts" $tasks) (list "container-layers" "/var/lib/containerd") -}}
    {{- $mount := dict "name" (first .) "mountPath" (last .) "readOnly" true "mountPropagation" "HostToContainer" -}}
    {{- $_ := set $container "volumeMounts" (append $container.volumeMounts $mount) -}}
    {{- $volume := dict "name" (first .) "hostPath" (dict "path" (last .) "type" "Directory") -}}
    {{- $_ := set $pod "volumes" (append $pod.volumes $volume) -}}
  {{- end -}}
{{- end -}}

{{- /* The configuration: an edit rolls the agents. */ -}}
{{- $overrides := list $values.agent.config -}}
{{- if $enforces -}}{{- $overrides = append $overrides $values.enforce.config -}}{{- end -}}
{{- $config := include "koordebpf.config" (dict "root" .root "overrides" $overrides) -}}
{{- range $pod.volumes -}}
  {{- with .configMap -}}{{- $_ := set . "name" $daemonset.metadata.name -}}{{- end -}}
{{- end -}}
{{- $_ := set $daemonset.spec.template.metadata.annotations "checksum/config" (sha256sum $config) -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $daemonset.metadata.name }}
  namespace: {{ .root.Release.Namespace }}
data:
  config.yaml: |
    {{- $config | nindent 4 }}
---
{{ toYaml $daemonset }}
{{- end -}}

{{/* The text of config.yaml: the file as it is, or with settings in place of its own. */}}
{{- define "koordebpf.config" -}}
{{- $text := .root.Files.Get "base/agent/config.yaml" -}}
{{- $config := fromYaml $text -}}
{{- range .overrides -}}
  {{- $_ := include "koordebpf.override" (dict "config" $config "given" . "at" "") -}}
{{- end -}}
{{- if eq (toYaml $config) (toYaml (fromYaml $text)) -}}{{- $text -}}{{- else -}}{{- toYaml $config -}}{{- end -}}
{{- end -}}

{{/* Put what is given in the place of what is there. */}}
{{- define "koordebpf.override" -}}
{{- range $key, $value := .given -}}
  {{- $at := printf "%s.%s" $.at $key -}}
  {{- if not (hasKey $.config $key) -}}{{- fail (printf "config%s: no such setting; koordebpf config show lists them" $at) -}}{{- end -}}
  {{- $held := get $.config $key -}}
  {{- if and (kindIs "map" $held) (kindIs "map" $value) -}}
    {{- $_ := include "koordebpf.override" (dict "config" $held "given" $value "at" $at) -}}
  {{- else -}}
    {{- $_ := set $.config $key $value -}}
  {{- end -}}
{{- end -}}
{{- end -}}
