"""Koordinator manager's side: the ConfigMap slo-controller-config, its rules, and NodeSLOs made from it."""
