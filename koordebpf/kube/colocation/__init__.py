"""What batch and mid resources need of the API server: pods and reports are read, Nodes and NodeMetrics written."""
