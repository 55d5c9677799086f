#!/usr/bin/env bash
# What the agent reads in a cluster, and the sample pods of vagrant/workloads.
set -euo pipefail

export KUBECONFIG=${KUBECONFIG:-/etc/kubernetes/admin.conf}
checkout=$(cd "$(dirname "$0")/../.." && pwd)
for path in deploy/base/nodeslo-crd.yaml deploy/examples/slo-controller-config.yaml vagrant/workloads; do
    kubectl apply --server-side -f "$checkout/$path" | sed -n 's/ serverside-applied$//; s/^/applied: /p'
done
