"""The manifests of deploy/ as kustomize and Helm render them, and the programs that do it."""
