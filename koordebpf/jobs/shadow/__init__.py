"""Shadow mode: what other configurations would have decided, judged after each round."""
