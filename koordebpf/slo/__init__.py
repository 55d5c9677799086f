"""Koordinator's vocabulary as values and rules: strategies, QoS classes, priority bands, quantities. Reads nothing."""
