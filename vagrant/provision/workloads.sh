#!/usr/bin/env bash
# What the agent reads in a cluster, and the sample pods of vagrant/workloads.
set -euo pipefail

export KUBECONFIG=${KUBECONFIG:-/etc/kubernetes/admin.conf}
checkout=$(cd "$(dirname "$0")/../.." && pwd)
apply() {
    kubectl apply --server-side "$@" | sed -n 's/ serverside-applied$//; s/^/applied: /p'
}
apply -k "$checkout/deploy/bootstrap"
apply -f "$checkout/deploy/examples/slo-controller-config.yaml"
apply -f "$checkout/vagrant/workloads"
