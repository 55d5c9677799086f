#!/usr/bin/env bash
# koordebpf out of this checkout, as a service that watches the node and evicts only with --enforce.
set -euo pipefail
# shellcheck source=vagrant/provision/files.sh
. "$(dirname "$0")/files.sh"

checkout=$(cd "$(dirname "$0")/../.." && pwd)
"$checkout/.ci/setup"
if [ "$(readlink /usr/local/bin/koordebpf)" != "$checkout/.venv/bin/koordebpf" ]; then
    ln -sfn "$checkout/.venv/bin/koordebpf" /usr/local/bin/koordebpf
    tell /usr/local/bin/koordebpf
fi

put /etc/koordebpf/config.yaml <<'EOF'
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
source:
  type: api
  kubeconfig: /etc/kubernetes/admin.conf
featureGates:
  MemoryAllocatableEvict: true # batch-allocatable-to-zero
report:
  audit: /var/log/koordebpf.audit
EOF
# A person edits it; it is written once.
[ -e /etc/default/koordebpf ] || put /etc/default/koordebpf <<'EOF'
# --enforce: evict. Then: systemctl restart koordebpf
MODE=--dry-run
EOF
put /etc/systemd/system/koordebpf.service <<'EOF'
[Unit]
Description=Protects latency-sensitive pods from memory pressure
After=kubelet.service

[Service]
EnvironmentFile=/etc/default/koordebpf
ExecStart=/usr/local/bin/koordebpf run --config /etc/koordebpf/config.yaml --node-name %H $MODE
Restart=on-failure
RestartSec=5
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
EOF

serve koordebpf.service
