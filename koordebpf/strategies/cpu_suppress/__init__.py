"""BECPUSuppress: best-effort pods are held to the CPU that others leave."""
