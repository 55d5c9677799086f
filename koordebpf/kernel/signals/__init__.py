"""What a backend offers, and what its signals are worth: the interface above the backends."""
