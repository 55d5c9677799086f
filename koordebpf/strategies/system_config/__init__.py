"""System configuration: the kernel's watermarks and scheduler features, as NodeSLO says."""
