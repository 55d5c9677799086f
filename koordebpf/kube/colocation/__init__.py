"""What colocation needs of the API server: pods, reports, Nodes and NodeMetrics are read and written."""
