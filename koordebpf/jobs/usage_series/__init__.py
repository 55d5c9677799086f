"""What pods, their containers and the node used over time, how long they stalled, and the snapshots of these series."""
