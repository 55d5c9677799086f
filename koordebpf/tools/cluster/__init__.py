"""What `kubectl koordebpf` does from outside of the nodes: asks their agents, side by side."""
