#!/usr/bin/env bash
# A Kubernetes of one node, by kubeadm. Its kubelet is configured by the very file that node.sh wrote.
# 1.35, as in tests/cluster.
set -euo pipefail
# shellcheck source=vagrant/provision/files.sh
. "$(dirname "$0")/files.sh"

minor=1.35
repository=https://pkgs.k8s.io/core:/stable:/v$minor/deb
key=/etc/apt/keyrings/kubernetes.asc

if [ ! -e "$key" ]; then
    text=$(curl -fsSL --retry 5 "$repository/Release.key")
    put "$key" <<<"$text"
fi
put /etc/apt/sources.list.d/kubernetes.list <<EOT
deb [signed-by=$key] $repository/ /
EOT
install_packages kubeadm kubectl kubelet
# An upgrade of Debian's packages does not upgrade the cluster.
apt-mark hold kubeadm kubectl kubelet >/dev/null

config=/etc/kubernetes/kubeadm.yaml
# Since 1.35 this check fails on cgroup v1, whatever the kubelet's configuration has.
skipped=
[ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ] || skipped=SystemVerification
# No taint: pods run beside the control plane.
put "$config" <<EOT
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
nodeRegistration:
  criSocket: unix:///run/containerd/containerd.sock
  taints: []
  ignorePreflightErrors: [$skipped]
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: $(kubeadm version -o short)
---
$(cat /etc/kubernetes/kubelet.yaml)
EOT

export KUBECONFIG=/etc/kubernetes/admin.conf
if [ ! -e "$KUBECONFIG" ]; then
    # What is half a cluster would be taken for one next time.
    kubeadm init --config "$config" || {
        kubeadm reset --force
        exit 1
    }
    tell "a cluster of Kubernetes $minor"
elif [ -n "$is_changed" ]; then
    kubeadm init phase kubelet-start --config "$config"
fi
if [ "$(readlink /root/.kube/config)" != "$KUBECONFIG" ]; then
    mkdir -p /root/.kube
    ln -sfn "$KUBECONFIG" /root/.kube/config
    tell /root/.kube/config
fi
kubectl wait --for=condition=Ready node --all --timeout=300s >/dev/null
