"""What a node reports of itself in its NodeMetric, what of it is worth sending, and when. Pure."""
