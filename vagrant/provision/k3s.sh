#!/usr/bin/env bash
# A Kubernetes of one node: k3s, of which everything is one file. kubeadm would need a container runtime and a network
# from elsewhere, and leaves less of a small machine to the pods.
# 1.34 still starts on cgroup v1; the kubelet of 1.35 refuses it unless configured otherwise.
set -euo pipefail
# shellcheck source=vagrant/provision/files.sh
. "$(dirname "$0")/files.sh"

version=v1.34.1+k3s1
binary=/usr/local/bin/k3s

case $(uname -m) in
    x86_64) name=k3s sums=sha256sum-amd64.txt ;;
    aarch64) name=k3s-arm64 sums=sha256sum-arm64.txt ;;
    *)
        echo "k3s is not made for $(uname -m)" >&2
        exit 1
        ;;
esac
if ! "$binary" --version 2>/dev/null | grep -qF " $version "; then
    base=https://github.com/k3s-io/k3s/releases/download/${version/+/%2B}
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    curl -fsSL --retry 5 -o "$folder/$name" "$base/$name"
    curl -fsSL --retry 5 "$base/$sums" | grep -E " $name\$" >"$folder/sums"
    (cd "$folder" && sha256sum --quiet -c sums)
    install -m 755 "$folder/$name" "$binary"
    ln -sf k3s /usr/local/bin/kubectl
    tell "k3s $version"
fi

# Pods are to have the node's memory: what k3s brings beside Kubernetes itself stays away. Swap is for some scenarios.
put /etc/rancher/k3s/config.yaml <<'EOF'
write-kubeconfig-mode: "0644"
disable: [traefik, servicelb, metrics-server, local-storage]
kubelet-arg:
  - fail-swap-on=false
EOF
put /etc/systemd/system/k3s.service <<EOF
[Unit]
Description=Kubernetes of one node
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
ExecStart=$binary server
KillMode=process
Delegate=yes
LimitNOFILE=1048576
TasksMax=infinity
TimeoutStartSec=0
Restart=always

[Install]
WantedBy=multi-user.target
EOF

serve k3s.service
# The node is made some seconds after the API server answers.
timeout 300 sh -c 'until kubectl get nodes -o name 2>/dev/null | grep -q .; do sleep 1; done'
kubectl wait --for=condition=Ready node --all --timeout=300s >/dev/null
