"""What pods, their containers and the node used over time, and how long they stalled."""
