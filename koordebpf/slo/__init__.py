"""Koordinator's vocabulary: QoS classes, priority bands, NodeSLO and its merge. Pure."""
