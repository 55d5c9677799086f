"""NodeMetric: what a node and its pods use, for Koordinator's manager and scheduler."""
