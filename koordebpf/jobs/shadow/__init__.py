"""Shadow mode: what other configurations would have decided, judged beside each round."""
