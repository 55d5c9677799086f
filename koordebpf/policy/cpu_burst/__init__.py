"""CPU burst: containers that reach their CPU limit may go above it for a while, as far as the node has room. Pure."""
