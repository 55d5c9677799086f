"""What `koordebpf top` does: measures the node again and again, and listens to keys."""
