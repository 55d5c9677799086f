#!/usr/bin/env bash
# A node without its Kubernetes: containerd, runc and network plugins of Debian, and the configuration of the kernel,
# of containerd, of the pods' network and of the kubelet. tests/node runs this script for its guest, too.
set -euo pipefail
# shellcheck source=vagrant/provision/files.sh
. "$(dirname "$0")/files.sh"

mapfile -t packages <"$(dirname "$0")/node-packages.txt"
install_packages "${packages[@]}"

put /etc/modules-load.d/kubernetes.conf <<'EOT'
br_netfilter
overlay
EOT
put /etc/sysctl.d/90-kubernetes.conf <<'EOT'
net.bridge.bridge-nf-call-iptables = 1
net.ipv4.ip_forward = 1
EOT
if [ -n "$is_changed" ] && [ -d /run/systemd/system ]; then
    systemctl restart systemd-modules-load.service systemd-sysctl.service
fi

# The pods of one node: no other route leads to them.
put /etc/cni/net.d/10-pods.conflist <<'EOT'
{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "pods",
      "isGateway": true,
      "ipMasq": true,
      "ipam": {
        "type": "host-local",
        "ranges": [[{ "subnet": "10.88.0.0/24" }]],
        "routes": [{ "dst": "0.0.0.0/0" }]
      }
    }
  ]
}
EOT

put /etc/kubernetes/kubelet.yaml <<'EOT'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
# Without it the kubelet of 1.35 does not start on cgroup v1.
failCgroupV1: false
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
# Some machines swap; on cgroup v1 the kubelet gives no pod any of it.
failSwapOn: false
memorySwap:
  swapBehavior: LimitedSwap
# As kubeadm has it, for a kubelet that starts without kubeadm.
authentication:
  anonymous:
    enabled: false
  webhook:
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
authorization:
  mode: Webhook
# The agent is to evict before the kubelet does: of memory half the kubelet's default, the others are the defaults.
evictionHard:
  memory.available: 50Mi
  nodefs.available: 10%
  nodefs.inodesFree: 5%
  imagefs.available: 15%
  imagefs.inodesFree: 5%
EOT

# sandbox_image: kubeadm's of Kubernetes 1.35. NRI: containerd 1.6, Debian 12's, has none and ignores the section.
put /etc/containerd/config.toml <<'EOT'
version = 2
[plugins."io.containerd.nri.v1.nri"]
  disable = false
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.10.1"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
EOT
serve containerd.service
