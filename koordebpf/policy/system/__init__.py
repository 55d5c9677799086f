"""Settings of the node's kernel, as spec.systemStrategy of the NodeSLO has them. Pure."""
