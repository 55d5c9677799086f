"""The manager's part, beside the agents: a NodeSLO for each Node out of slo-controller-config. It never evicts."""
